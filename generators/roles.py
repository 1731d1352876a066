"""The roles of generation, each a small protocol with two families of players.

The families are `generators.chat` (any OpenAI-compatible endpoint) and `generators.procedural` (no model).

A player that cannot do its part raises `RoleFailed`: the item is rejected with that reason, nothing else stops.
Feedback is text: the critique of a review, the tail of a build log with step and exit code, the report of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from generators.messages import Blueprint, Draft, Environment, Reference
from sandbox.engine import Sandbox


class RoleFailed(Exception):
    """A player gave nothing usable. `reason` is the short class that the yield table counts."""

    def __init__(self, role: str, reason: str, detail: str = "") -> None:
        self.role, self.reason, self.detail = role, reason, detail
        super().__init__(f"{role}: {reason}" + (f": {detail}" if detail else ""))


@dataclass(frozen=True, kw_only=True)
class Review:
    """Three scores of 1 to 5, each must be above 4, and what to change."""

    environment_complexity: float
    data_generatability: float
    verification_determinism: float
    critique: str = ""

    @property
    def accepted(self) -> bool:
        return min(self.environment_complexity, self.data_generatability, self.verification_determinism) > 4


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Tests held against the instruction."""

    unstated: tuple[str, ...] = ()
    """Facts that are tested but can be known neither from the instruction nor from the environment."""
    untested: tuple[str, ...] = ()
    """Requirements of the instruction that no test looks at."""

    @property
    def agreed(self) -> bool:
        return not self.unstated and not self.untested


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a solver or cheater did in a sandbox, before grading."""

    commands: tuple[str, ...]
    turns: int
    failure: str = "ok"
    """A `FailureClass` value: ok, turn_limit, parse, context_length, llm_error, ..."""


class Drafter(Protocol):
    async def draft(self, blueprint: Blueprint, *, feedback: Sequence[str] = ()) -> Draft: ...


class Reviewer(Protocol):
    async def review(self, blueprint: Blueprint, draft: Draft) -> Review: ...


class Furnisher(Protocol):
    """Environment and initial-state tests. `feedback` holds the log of each earlier try."""

    async def furnish(self, blueprint: Blueprint, draft: Draft, *, feedback: Sequence[str] = ()) -> Environment: ...


class Examiner(Protocol):
    """The final-state tests. `feedback` says what was wrong with each earlier version."""

    async def examine(
        self, blueprint: Blueprint, draft: Draft, environment: Environment, *, feedback: Sequence[str] = ()
    ) -> str: ...


class Judge(Protocol):
    async def judge(self, draft: Draft, environment: Environment, final_tests: str) -> Judgement: ...


class Solver(Protocol):
    """One attempt at the task in a started sandbox. Sees the instruction (a procedural one may know the reference)."""

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played: ...

    def reference(self, blueprint: Blueprint) -> Reference | None:
        """The reference known by construction, if any."""
        ...


class Cheater(Protocol):
    """Tries to pass without doing the task; sees the instruction and the sandbox, nothing else."""

    async def cheat(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox) -> Played: ...


@dataclass(frozen=True, kw_only=True)
class Cast:
    """One player for each role."""

    drafter: Drafter
    reviewer: Reviewer
    furnisher: Furnisher
    examiner: Examiner
    judge: Judge
    solver: Solver
    cheater: Cheater
