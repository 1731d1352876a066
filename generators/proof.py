"""The runs that a certificate rests on, over one built task: doing nothing, the reference, its script, a cheater.

Every run has a fresh sandbox and is graded from its frozen file system. `certify` earns a certificate with them,
`generators.verify` earns it again from the directory alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from generators.assemble import SOLUTION
from generators.clock import with_moved_clock
from generators.context import Bench, replay
from generators.handling import UnfitError
from generators.roles import Played
from generators.solution import run_solution
from generators.suites import named
from generators.truth import files_with_truth
from runtime.task import Task
from sandbox.engine import Sandbox
from sandbox.spec import FailureClass, Suite, Verdict

_SHOWN_TESTS = 3


@dataclass(frozen=True, kw_only=True)
class NoOp:
    """What doing nothing showed."""

    failing: tuple[str, ...]
    reward: float
    leaks: tuple[str, ...]
    """Files of the built image in which the truth can be read."""


class Prover:
    """Runs over one task and its built image."""

    def __init__(self, bench: Bench, image: str, task: Task, *, command_timeout_s: float) -> None:
        self._bench, self._image, self._task = bench, image, task
        self._suite, self._timeout_s = task.suite(), command_timeout_s

    async def no_op(self, truth: Sequence[str]) -> NoOp:
        """A session in which nothing is done, searched for the truth and graded."""

        async def play(sandbox: Sandbox) -> list[str]:
            await replay(sandbox, (), timeout_s=self._timeout_s)
            return await files_with_truth(sandbox, truth)

        leaks, verdict = await self._bench.attempt(self._image, self._suite, "no-op", play)
        return NoOp(failing=named(verdict.tests, "failed"), reward=_reward(verdict, "no-op"), leaks=tuple(leaks))

    async def reference(self, commands: Sequence[str]) -> Verdict:
        """The reference in one persistent session."""
        return await self._played(commands, self._suite, "reference")

    async def another_day(self, commands: Sequence[str]) -> Verdict:
        """The reference, graded under a clock that is ahead."""
        return await self._played(commands, with_moved_clock(self._suite), "another day")

    async def _played(self, commands: Sequence[str], suite: Suite, purpose: str) -> Verdict:
        async def play(sandbox: Sandbox) -> Played:
            return await replay(sandbox, commands, timeout_s=self._timeout_s)

        _, verdict = await self._bench.attempt(self._image, suite, purpose, play)
        return verdict

    async def script(self) -> Verdict:
        """`solution/solve.sh` as the agent user, graded by the task's own `tests/test.sh`: what other runners do."""
        if self._task.text(SOLUTION) is None:
            raise UnfitError("solution_script", f"there is no {SOLUTION}")

        async def play(sandbox: Sandbox) -> None:
            await run_solution(sandbox, self._task)

        suite = Suite(files=self._task.folder("tests"), mode="harbor", timeout_s=self._suite.timeout_s)
        _, verdict = await self._bench.attempt(self._image, suite, "script", play)
        return verdict

    async def cheat(self, play: Callable[[Sandbox], Awaitable[Played]]) -> tuple[Played, float]:
        """A cheater's session and the reward it got."""
        played, verdict = await self._bench.attempt(self._image, self._suite, "cheat", play)
        return played, _reward(verdict, "cheater")


def explain(verdict: Verdict) -> str:
    """A failed run in a few words."""
    bad = [test.name for test in verdict.tests if test.outcome != "passed"]
    more = f" and {len(bad) - _SHOWN_TESTS} more" if len(bad) > _SHOWN_TESTS else ""
    parts = (
        str(verdict.failure) if verdict.failure is not FailureClass.OK else "",
        f"not passed: {', '.join(bad[:_SHOWN_TESTS])}{more}" if bad else "",
        verdict.detail,
    )
    return "; ".join(filter(None, parts)) or f"reward {verdict.reward}"


def _reward(verdict: Verdict, run: str) -> float:
    if verdict.reward is None:
        raise UnfitError("flaky", f"{run}: {explain(verdict)}")
    return verdict.reward
