"""Evaluation: any policy on any directory of Harbor tasks, k attempts each, with everything that the numbers depend on.

Invariants:
- An attempt that infrastructure kept from a verdict is in no rate; it is counted and shown apart.
- pass@k is the unbiased estimate (Chen et al. 2021, arXiv 2107.03374), averaged over tasks with at least k graded
  attempts; its interval comes from a seeded bootstrap over tasks.
- The result names the policy and who served it, the agent's settings and versions, the engine, what became of a full
  context, each task's hash and limits: two results can be compared only when they agree.
- An evaluation that was stopped goes on where it was when it is started again in the same directory; one of something
  else is refused there (`trainer.basis`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from math import comb
from pathlib import Path
from typing import Any, Literal

import msgspec
from anyio import to_thread

from runtime.bus import MemoryBus
from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.source import Once
from runtime.stage import Message, Rejected
from runtime.store import Store
from runtime.task import read_task
from runtime.trajectory import Trajectory, decode, encode
from trainer.analysis import Analysis, analyse
from trainer.basis import Basis, begin
from trainer.rollout import STAGE, RolledOut, RolloutAsked, RolloutContext

SCHEMA_VERSION = 1
RESULT, TRAJECTORIES, STORE = "result.json", "trajectories.jsonl", "store.sqlite"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the result's parts."""


class Attempt(Record, frozen=True, kw_only=True):
    index: int
    reward: float | None
    """None: infrastructure kept it from a verdict, or it has none by its nature; `failure` says which."""
    failure: str
    trajectory: str = ""
    """Its id in `trajectories.jsonl`."""

    @property
    def passed(self) -> bool:
        return self.reward is not None and self.reward >= 1.0


class TaskResult(Record, frozen=True, kw_only=True):
    name: str
    hash: str
    limits: dict[str, float]
    attempts: tuple[Attempt, ...]

    @property
    def graded(self) -> int:
        return sum(attempt.reward is not None for attempt in self.attempts)

    @property
    def passed(self) -> int:
        return sum(attempt.passed for attempt in self.attempts)


class Evaluation(Record, frozen=True, kw_only=True):
    """One evaluation, as it is kept."""

    schema_version: int = SCHEMA_VERSION
    model: str
    policy_version: int | None
    agent_version: str
    prompt_version: str
    settings: dict[str, Any]
    """Of the agent, with parser and observation version."""
    engine: str
    weights: str = ""
    """Digest of the policy's files; empty where there are none, and in results of earlier programs, as the next two."""
    served_by: str = ""
    """`endpoint`, `torch` or `sglang`."""
    context_overflow: Literal["", "grade", "exclude"] = ""
    attempts: int
    seed: int
    created_at: float
    tasks: tuple[TaskResult, ...]
    analysis: Analysis


NOT_MEASURED = "not measured"


class Rate(Record, frozen=True, kw_only=True):
    """pass@k with its 95 % interval. Of no task there is none: that is no rate of 0."""

    k: int
    value: float | None
    low: float | None
    high: float | None
    tasks: int
    """Tasks with at least k graded attempts."""

    def shown(self) -> str:
        """For people: `50.0% (40.0% to 60.0%)`, or that nothing was measured."""
        return NOT_MEASURED if self.value is None else f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def percent(value: float | None, form: str = ".1%") -> str:
    """For people: a share, or that nothing was measured."""
    return NOT_MEASURED if value is None else format(value, form)


def pass_at_k(graded: int, passed: int, k: int) -> float:
    """Probability that at least one of k attempts, drawn from `graded` without putting back, passed."""
    if k > graded:
        raise ValueError(f"pass@{k} needs {k} graded attempts, there are {graded}")
    return 1.0 - comb(graded - passed, k) / comb(graded, k)


def rate(tasks: Sequence[TaskResult], k: int, *, resamples: int = 2000, seed: int = 0) -> Rate:
    """pass@k over tasks. Deterministic in (tasks, seed)."""
    values = [pass_at_k(task.graded, task.passed, k) for task in tasks if task.graded >= k]
    if not values:
        return Rate(k=k, value=None, low=None, high=None, tasks=0)
    low, high = bootstrap(values, resamples=resamples, seed=seed)
    return Rate(k=k, value=_mean(values), low=low, high=high, tasks=len(values))


def bootstrap(values: Sequence[float], *, resamples: int, seed: int) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of at least one value."""
    draw = random.Random(seed)
    means = sorted(_mean(draw.choices(values, k=len(values))) for _ in range(resamples))
    return means[round(0.025 * (resamples - 1))], means[round(0.975 * (resamples - 1))]


def missing(evaluation: Evaluation) -> Counter[str]:
    """Attempts without a reward, by reason."""
    return Counter(a.failure for task in evaluation.tasks for a in task.attempts if a.reward is None)


async def run_evaluation(
    context: RolloutContext,
    tasks: Sequence[Path],
    directory: Path,
    *,
    run_id: str,
    basis: Basis,
    limits: Limits,
    concurrency: int,
    policy_version: int | None = None,
    on_event: OnEvent = lambda _: None,
    announce: Callable[[Runner], None] = lambda _: None,
) -> Evaluation | None:
    """Evaluate and write `result.json` and `trajectories.jsonl` into `directory`. None when the run was drained before
    its end.

    Args:
        basis: what the result rests on: `basis_of` these tasks and the context's settings.

    Raises: UserError, TaskInvalid, StoreError, ChatRejected, SandboxError.
    """
    asked = [
        RolloutAsked(item=f"{task.name}/0/{i}", run_id=run_id, task=str(task), group=task.name)
        for task in tasks
        for i in range(basis.attempts)
    ]
    stage = replace(STAGE, slots=concurrency)
    async with Store(directory / STORE) as store, MemoryBus() as bus:
        await begin(store, run_id, basis, command=context.source)
        runner = Runner(
            stages=[stage],
            bus=bus,
            store=store,
            context=context,
            run_id=run_id,
            source=Once(asked),
            on_event=on_event,
            limits=limits,
        )
        announce(runner)
        result = await runner.run()
        if result.pending:
            return None
        routes = Routes([stage])
        ends = {message.item: message for message in map(routes.decode, [e.body for e in await store.terminal(run_id)])}

    def assemble() -> Evaluation:
        trajectories = [
            decode(context.blobs.get(end.trajectory)) for _, end in sorted(ends.items()) if isinstance(end, RolledOut)
        ]
        evaluation = Evaluation(
            model=context.model,
            policy_version=policy_version,
            agent_version=trajectories[0].agent_version if trajectories else version("termloom"),
            prompt_version=trajectories[0].prompt_version if trajectories else "",
            settings=basis.settings,
            engine=basis.engine,
            weights=basis.player.weights,
            served_by=basis.player.served_by,
            context_overflow=basis.context_overflow,
            attempts=basis.attempts,
            seed=basis.seed,
            created_at=time.time(),
            tasks=tuple(_task_result(task, basis.attempts, ends) for task in tasks),
            analysis=analyse(trajectories),
        )
        write_evaluation(evaluation, trajectories, directory)
        return evaluation

    return await to_thread.run_sync(assemble)


def _task_result(directory: Path, attempts: int, ends: dict[str, Message]) -> TaskResult:
    task = read_task(directory)
    return TaskResult(
        name=directory.name,
        hash=task.hash(),
        limits={name: float(value) for name, value in msgspec.to_builtins(task.limits()).items()},
        attempts=tuple(_attempt(i, ends[f"{directory.name}/0/{i}"]) for i in range(attempts)),
    )


def _attempt(index: int, end: Message) -> Attempt:
    if isinstance(end, RolledOut):
        return Attempt(index=index, reward=end.reward, failure=end.failure, trajectory=end.item)
    assert isinstance(end, Rejected)
    cause = end.reason.removeprefix("gave_up: ").partition(":")[0]  # the class alone: the detail is in the store
    return Attempt(index=index, reward=None, failure=cause)


def write_evaluation(evaluation: Evaluation, trajectories: Sequence[Trajectory], directory: Path) -> None:
    """Write both files; `result.json` appears last and whole."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / TRAJECTORIES).write_bytes(b"".join(encode(trajectory) + b"\n" for trajectory in trajectories))
    fresh = directory / f".{RESULT}.partial"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(evaluation), indent=1))
    fresh.rename(directory / RESULT)


def read_evaluation(path: Path) -> Evaluation:
    """Read a result file, or the one in a directory. Raises: UserError."""
    path = path / RESULT if path.is_dir() else path
    try:
        data = path.read_bytes()
        written = msgspec.json.decode(data, type=dict[str, object]).get("schema_version")
        if not isinstance(written, int) or written > SCHEMA_VERSION:
            raise UserError(
                str(path), f"schema_version is {written!r}, this program reads up to {SCHEMA_VERSION}", "Update it"
            )
        return msgspec.json.decode(data, type=Evaluation)
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), "Give a result of 'termloom evaluate'") from None
    except msgspec.MsgspecError as error:
        raise UserError(str(path), f"is no result: {error}", "Give a result of 'termloom evaluate'") from None


def read_trajectories(directory: Path) -> list[Trajectory]:
    """The graded episodes of an evaluation, in the order of their ids."""
    path = directory / TRAJECTORIES
    return [decode(line, source=str(path)) for line in path.read_bytes().splitlines() if line]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
