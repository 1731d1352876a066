"""The roles of synthesis, each a small protocol with two families of players: `chat` and `procedural`.

A player keeps nothing between calls: what it says is a function of the scene and of what the critic said of its earlier
drafts. What is random about it derives from `Scene.key`. A player that cannot do its part raises `RoleFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from generators.messages import ErrorType
from runtime.task import Task
from runtime.trajectory import CriticVerdict, Turn
from sandbox.engine import Sandbox


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where an episode stands before its next turn."""

    instruction: str
    turns: tuple[Turn, ...]
    """All turns so far, with what really came of them."""
    tried: tuple[str, ...]
    """Mistaken commands that were discarded at this very turn: making one again is useless."""
    key: str
    """Names this draw of this turn: `<item>/<turn>/<draw>`."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Thought and action of one turn."""

    thought: str
    command: str
    done: bool = False
    """The task is finished; there is no command then."""


class StepGenerator(Protocol):
    """Writes steps that are meant to advance the task. After a mistake: diagnose what it left, and repair it."""

    async def step(self, scene: Scene, *, drafts: Sequence[CriticVerdict]) -> Step: ...


class MistakeMaker(Protocol):
    """Writes steps that are plausible and wrong."""

    def possible(self, scene: Scene) -> Sequence[ErrorType]:
        """Types of mistakes that it can make here; none when there is nothing to get wrong."""
        ...

    async def mistake(self, scene: Scene, error_type: ErrorType, *, drafts: Sequence[CriticVerdict]) -> Step: ...


class Critic(Protocol):
    """Compares a draft with what it is meant to be (`error_type` None: a correct step). It never edits."""

    async def judge(self, scene: Scene, step: Step, error_type: ErrorType | None, *, draft: int) -> CriticVerdict: ...


@dataclass(frozen=True, kw_only=True)
class Cast:
    """One player for each role, for one episode."""

    generator: StepGenerator
    mistake_maker: MistakeMaker
    critic: Critic


class Troupe(Protocol):
    """Casts the players of an episode."""

    @property
    def name(self) -> str:
        """`procedural`, or `chat:<model>`."""
        ...

    @property
    def prompts(self) -> dict[str, str]:
        """Version of each prompt template."""
        ...

    async def cast(self, task: Task, sandbox: Sandbox) -> Cast:
        """Players for an episode of `task` in a started sandbox. Raises: RoleFailed, SandboxError."""
        ...
