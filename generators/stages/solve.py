"""solve: independent attempts, until it is known that the task can be done and about how often.

The decision is made on the shortest prefix of attempts (by index) that settles it: at least `attempts_least` of them
with one success among them, or all `attempts`. Attempts run concurrently and later ones are given up once a prefix
has decided; since only the prefix counts, the outcome does not depend on who came first. With a difficulty band, all
attempts are made, for the pass rate is what decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio

from generators.band import Band
from generators.context import Bench, GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Attempt, Examined, Reference, Solved
from generators.roles import Played
from generators.suites import final_suite
from generators.telltales import network_wanted
from runtime.agent.episode import GRADABLE
from runtime.stage import Message, RetryLater, Stage
from sandbox.engine import Sandbox
from sandbox.errors import SandboxLost
from sandbox.spec import FailureClass, Verdict

_NEEDS_NETWORK = "needs_network"
"""How an attempt ends whose tests wanted a network."""


@handles("solve")
async def solve(message: Examined, context: GenerationContext) -> Message:
    settings = context.settings
    band = Band.parse(settings.band)
    least = settings.attempts if band else settings.attempts_least
    attempts = await _attempts(message, context, least=least, most=settings.attempts)
    graded = [attempt for attempt in attempts if attempt.reward is not None]
    if not graded:
        raise RetryLater(f"{message.item}: no attempt could be graded: {attempts[-1].failure}")
    reference = context.players.cast.solver.reference(message.blueprint) or shortest_success(graded)
    if reference is None or not any(map(succeeded, graded)):
        raise UnfitError(_unsolved(graded, reference), f"0 of {len(graded)} attempts passed")
    if band is not None and not band.holds(graded):
        passed = sum(map(succeeded, graded))
        raise UnfitError("out_of_band", f"{passed} of {len(graded)} attempts passed, the band is {settings.band}")
    return Solved(
        item=message.item, run_id=message.run_id, examined=message, attempts=tuple(attempts), reference=reference
    )


def deciding_prefix(outcomes: Sequence[bool], *, least: int, most: int) -> int | None:
    """Length of the shortest prefix that settles the matter, None while more attempts are needed."""
    for size in range(1, len(outcomes) + 1):
        if size >= most or (size >= least and any(outcomes[:size])):
            return size
    return None


def succeeded(attempt: Attempt) -> bool:
    return attempt.reward is not None and attempt.reward >= 1.0


def shortest_success(attempts: Iterable[Attempt]) -> Reference | None:
    """The successful attempt with the fewest commands, the earliest of equals."""
    wins = sorted(filter(succeeded, attempts), key=lambda attempt: (len(attempt.commands), attempt.index))
    return Reference(commands=wins[0].commands) if wins else None


def _unsolved(graded: Sequence[Attempt], reference: Reference | None) -> str:
    """Why nothing passed, as far as it shows."""
    if all(attempt.failure == _NEEDS_NETWORK for attempt in graded):
        return _NEEDS_NETWORK
    tried = reference is not None and any(attempt.commands == reference.commands for attempt in graded)
    return "reference_fails" if tried else "unsolved"


async def _attempts(message: Examined, context: GenerationContext, *, least: int, most: int) -> list[Attempt]:
    """Run attempts in waves, each as large as all before it, and return the deciding prefix."""
    bench = context.bench(message.item, message.environment)
    image = await bench.image()
    done: dict[int, Attempt] = {}
    while True:
        wave = range(len(done), min(most, max(least, 2 * len(done))))
        async with anyio.create_task_group() as group:

            async def run(index: int) -> None:
                done[index] = await _attempt(message, context, bench, image, index)
                if _decided(done, least=least, most=most) is not None:
                    group.cancel_scope.cancel()

            for index in wave:
                group.start_soon(run, index)
        if (size := _decided(done, least=least, most=most)) is not None:
            return [done[index] for index in range(size)]


def _decided(done: dict[int, Attempt], *, least: int, most: int) -> int | None:
    outcomes: list[bool] = []
    while (attempt := done.get(len(outcomes))) is not None:
        outcomes.append(succeeded(attempt))
    return deciding_prefix(outcomes, least=least, most=most)


async def _attempt(message: Examined, context: GenerationContext, bench: Bench, image: str, index: int) -> Attempt:
    async def play(sandbox: Sandbox) -> Played:
        return await context.players.cast.solver.solve(message.blueprint, message.draft, sandbox, attempt=index)

    suite = final_suite(message.final_tests, message.inventory)
    try:
        played, verdict = await bench.attempt(image, suite, f"solve/{index}", play)
    except SandboxLost:
        return Attempt(index=index, reward=None, failure=FailureClass.SANDBOX_LOST, commands=(), turns=0)
    reward = verdict.reward if played.failure in GRADABLE else None
    return Attempt(
        index=index,
        reward=reward,
        failure=_ending(played, verdict),
        commands=played.commands,
        turns=played.turns,
    )


def _ending(played: Played, verdict: Verdict) -> str:
    if played.failure != FailureClass.OK:
        return played.failure
    if verdict.reward is None:
        return verdict.failure
    if verdict.passed:
        return FailureClass.OK
    return _NEEDS_NETWORK if network_wanted(verdict) else FailureClass.AGENT_FAIL


STAGE = Stage(
    name="solve",
    subscribes="examined",
    takes=Examined,
    publishes={Solved: "solved"},
    handler=solve,
    limits=("chat", "build", "create", "run", "grade"),
)
