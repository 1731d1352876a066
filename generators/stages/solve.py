"""solve: independent attempts, until it is known that the task can be done and about how often.

The decision is made on the shortest prefix of attempts (by index) that settles it (`StopRule`). Attempts run
concurrently and later ones are given up once a prefix has decided; since only the prefix counts, the outcome does not
depend on who came first. Where the band is about another policy than the author's solver, that policy's attempts follow
once the task is known to be solvable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio

from generators.band import Band, passes
from generators.context import TESTS_OWN, Bench, GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Attempt, Examined, Reference, Solved
from generators.roles import Played, Solver
from generators.suites import final_suite
from generators.telltales import network_wanted
from runtime.agent.episode import GRADABLE
from runtime.stage import Message, RetryLater, Stage
from sandbox.engine import Sandbox
from sandbox.errors import SandboxLost
from sandbox.spec import FailureClass, Verdict

_NEEDS_NETWORK = "needs_network"
"""How an attempt ends whose tests wanted a network."""


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When the attempts made are enough: all `most` of them, or as soon as they settle the matter."""

    most: int
    least: int = 1
    """Attempts that infrastructure must leave to be graded; without a band so many, with one success, are enough."""
    band: Band | None = None
    confidence: float = 1.0
    """With a band: how sure its decision must be (`Band.decision`)."""
    solvable: bool = True
    """A success is needed before the task can be in the band."""

    def settled(self, attempts: Sequence[Attempt]) -> bool:
        if len(attempts) >= self.most:
            return True
        if self.band is None:
            return len(_graded(attempts)) >= self.least and passes(attempts) > 0
        decision = self._decision(self.band, attempts)
        return decision is False or (decision is True and (passes(attempts) > 0 or not self.solvable))

    def prefix(self, attempts: Sequence[Attempt]) -> int | None:
        """Length of the shortest prefix that settles the matter, None while more attempts are needed."""
        return next((size for size in range(1, len(attempts) + 1) if self.settled(attempts[:size])), None)

    @property
    def spare(self) -> int:
        """Attempts that infrastructure may take."""
        return self.most - min(self.least, self.most)

    def inside(self, attempts: Sequence[Attempt]) -> bool:
        """What the band says to attempts that settle the matter."""
        return self.band is None or self._decision(self.band, attempts) is True

    def _decision(self, band: Band, attempts: Sequence[Attempt]) -> bool | None:
        """Infrastructure takes attempts out of the count: those to come are taken to be graded."""
        graded, passed = _graded(attempts), passes(attempts)
        return band.decision(passed, len(graded) - passed, self.most - len(attempts), confidence=self.confidence)


@handles("solve")
async def solve(message: Examined, context: GenerationContext) -> Message:
    settings, players = context.settings, context.players
    band = Band.parse(settings.band)
    theirs = players.measured is not None
    rule = StopRule(
        most=settings.attempts,
        least=settings.attempts_least,
        band=None if theirs else band,
        confidence=settings.band_confidence,
    )
    attempts = await _attempts(message, context, players.cast.solver, rule, "solve")
    reference = players.cast.solver.reference(message.blueprint) or shortest_success(attempts)
    graded = _graded(attempts)
    if reference is None or not any(map(succeeded, graded)):
        raise UnfitError(_unsolved(graded, reference), f"0 of {len(graded)} attempts passed")
    measured: list[Attempt] = []
    if players.measured is not None:
        rule = dataclasses.replace(rule, band=band, solvable=False)
        measured = await _attempts(message, context, players.measured, rule, "measure")
    _refuse_outside(rule, measured if theirs else attempts, settings.band)
    return Solved(
        item=message.item,
        run_id=message.run_id,
        examined=message,
        attempts=tuple(attempts),
        reference=reference,
        measured=tuple(measured),
    )


def _refuse_outside(rule: StopRule, attempts: Sequence[Attempt], band: str) -> None:
    """Raises: UnfitError when the attempts lie outside the band."""
    if not rule.inside(attempts):
        share = f"{passes(attempts)} of {len(_graded(attempts))}"
        raise UnfitError("out_of_band", f"{share} attempts passed, the band is {band}")


def _graded(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.reward is not None]


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


async def _attempts(
    message: Examined, context: GenerationContext, solver: Solver, rule: StopRule, purpose: str
) -> list[Attempt]:
    """Run attempts in waves, each as large as all before it, and return the deciding prefix.

    Raises: RetryLater, UnfitError when too few of them could be graded.
    """
    bench = context.bench(message.item, message.environment)
    image = await bench.image()
    done: dict[int, Attempt] = {}
    while True:
        wave = range(len(done), min(rule.most, max(rule.least, 2 * len(done))))
        async with anyio.create_task_group() as group:

            async def run(index: int) -> None:
                done[index] = await _attempt(message, context, solver, bench, image, index, purpose)
                if rule.prefix(_in_order(done)) is not None:
                    group.cancel_scope.cancel()

            for index in wave:
                group.start_soon(run, index)
        attempts = _in_order(done)
        if (size := rule.prefix(attempts)) is not None:
            refuse_lost(message.item, rule, attempts[:size])
            return attempts[:size]


def refuse_lost(item: str, rule: StopRule, attempts: Sequence[Attempt]) -> None:
    """Hold what infrastructure took against what it may take.

    Raises: RetryLater; UnfitError where the endpoint's filter took them, whose answers stay as they are.
    """
    ungraded = [attempt for attempt in attempts if attempt.reward is None]
    lost = [attempt for attempt in ungraded if attempt.failure not in TESTS_OWN]
    filtered = [attempt for attempt in lost if attempt.failure == FailureClass.LLM_FILTERED]
    if len(filtered) > rule.spare:
        raise UnfitError("llm_filtered", f"the endpoint's filter ended {len(filtered)} of {len(attempts)} attempts")
    if len(lost) > rule.spare or len(ungraded) == len(attempts):
        share = f"{len(ungraded)} of {len(attempts)}"
        raise RetryLater(f"{item}: {share} attempts could not be graded, the last: {ungraded[-1].failure}")


def _in_order(done: dict[int, Attempt]) -> list[Attempt]:
    """The attempts that are done, up to the first that is not."""
    attempts: list[Attempt] = []
    while (attempt := done.get(len(attempts))) is not None:
        attempts.append(attempt)
    return attempts


async def _attempt(
    message: Examined,
    context: GenerationContext,
    solver: Solver,
    bench: Bench,
    image: str,
    index: int,
    purpose: str,
) -> Attempt:
    async def play(sandbox: Sandbox) -> Played:
        return await solver.solve(message.blueprint, message.draft, sandbox, attempt=index)

    suite = final_suite(message.final_tests, message.inventory)
    try:
        played, verdict = await bench.attempt(image, suite, f"{purpose}/{index}", play)
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
    slots=16,
    limits=("chat", "build", "create", "run", "grade"),
)
