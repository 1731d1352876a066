"""Rollouts: one message, one episode of the policy on one task, one trajectory with a reward or a reason why there is
none.

Declared as a stage, so that a runner carries rollouts and evaluations with its leases and its store, and any process
on the same bus can take part. The training loop, whose admission depends on what the learner consumes, plays through
`persevere`.

Invariants:
- `RolledOut` carries a real reward. Infrastructure failures come again (`RetryLater`) and end as `Rejected`; endings
  that have no reward by their nature end so at once. None of them is a reward of 0.
- An episode's deadline is that of its settings: model time and command time. Waiting for our limits, for a sandbox and
  in the engine's queue is on no episode's clock; the stage's own deadline only ends what hangs.
- The draws of an episode depend on the run's seed and the message's item: a second delivery plays the same episode
  again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import msgspec

from runtime.agent.policy import Policy
from runtime.agent.settings import AgentSettings
from runtime.blobs import Blobs
from runtime.errors import TaskInvalid
from runtime.outcome import Again, Ended, judge
from runtime.stage import Message, Rejected, RetryLater, Stage
from runtime.trajectory import Trajectory, encode
from sandbox.errors import BuildUnsupported
from sandbox.spec import FailureClass
from trainer.arena import Arena, EnvironmentBroken

FINAL = frozenset(
    {
        FailureClass.OUTPUT_LENGTH,
        FailureClass.CONTEXT_LENGTH,
        FailureClass.LLM_FILTERED,
        FailureClass.GRADE_TIMEOUT,
        FailureClass.REWARD_INVALID,
    }
)
"""Endings without a reward that another try would only repeat."""


class RolloutAsked(Message, frozen=True, kw_only=True):
    """One episode to play. `item` is `<task>/<epoch>/<member>`."""

    task: str
    """The task's directory."""
    group: str
    """Episodes of one task drawn together."""


class RolledOut(Message, frozen=True, kw_only=True):
    """An episode with its reward."""

    group: str
    reward: float
    failure: str
    trajectory: str
    """Digest of the trajectory among the context's blobs."""


@dataclass(frozen=True, kw_only=True)
class RolloutContext:
    """Given to the stage."""

    arena: Arena
    policy: Policy
    settings: AgentSettings
    blobs: Blobs
    source: Literal["rollout", "evaluate"] = "rollout"
    model: str = ""
    grade_overflow: bool = True
    """Whether an episode that ran out of tokens is graded on what it left behind."""


async def rollout(message: RolloutAsked, context: RolloutContext) -> list[Message]:
    """The stage's handler. Raises: RetryLater and what `Arena.play` raises for infrastructure."""
    played = await play(message, context)
    if isinstance(played, Rejected):
        return [played]
    assert played.reward is not None
    digest = await anyio.to_thread.run_sync(context.blobs.put, encode(played))
    return [
        RolledOut(
            item=message.item,
            run_id=message.run_id,
            group=message.group,
            reward=played.reward,
            failure=str(played.failure),
            trajectory=digest,
        )
    ]


async def play(message: RolloutAsked, context: RolloutContext) -> Trajectory | Rejected:
    """One try: a trajectory that has a reward, or why this episode never will.

    Raises: RetryLater, and as `Arena.play`.
    """
    try:
        got = await context.arena.play(
            Path(message.task),
            context.policy,
            context.settings,
            item=message.item,
            grade_overflow=context.grade_overflow,
        )
    except (EnvironmentBroken, BuildUnsupported, TaskInvalid) as error:
        return _rejected(message, "environment", str(error))
    if got.reward is not None:
        return msgspec.structs.replace(got, source=context.source, model=context.model)
    detail = got.verdict.detail if got.verdict else got.detail
    if got.failure in FINAL:
        return _rejected(message, str(got.failure), detail)
    raise RetryLater(f"{got.failure}: {detail}")


STAGE = Stage(
    name="rollout",
    subscribes="rollouts",
    takes=RolloutAsked,
    publishes={RolledOut: "rolled_out"},
    handler=rollout,
    slots=64,
    limits=("build", "create", "run", "grade"),
    deadline_s=4 * 3600.0,
)


async def persevere(message: RolloutAsked, context: RolloutContext, *, attempts: int) -> Trajectory | Rejected:
    """`play` with the runner's patience: again after a pause while infrastructure is at fault.

    Raises: what ends a run (UserError, ChatRejected, BudgetExhausted, EngineUnavailable), and what is a bug.
    """
    reason = ""
    async for _ in _pauses(attempts):
        try:
            with anyio.move_on_after(STAGE.deadline_s):
                return await play(message, context)
            reason = f"not done within {STAGE.deadline_s:g} s"
        except Exception as error:
            match judge(error):
                case Again(reason=why, fault=""):
                    reason = why
                case Ended(reason=why, detail=detail):
                    return _rejected(message, why, detail)
                case _:
                    raise
    return _rejected(message, f"gave_up: {reason.partition(':')[0]}", reason)


async def _pauses(attempts: int) -> AsyncIterator[int]:
    """Attempt numbers, with the stage's growing pause between them."""
    for attempt in range(attempts):
        if attempt:
            await anyio.sleep(min(STAGE.backoff.ceiling_s, STAGE.backoff.first_s * 2 ** (attempt - 1)))
        yield attempt


def _rejected(message: RolloutAsked, reason: str, detail: str) -> Rejected:
    return Rejected(item=message.item, run_id=message.run_id, stage=STAGE.name, reason=reason, detail=detail)
