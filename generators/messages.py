"""What travels between the generation stages, and the parts of a task while it is being made.

`Truth` never enters an agent's prompt, an image or a build context: only `examine`, `solve` (procedural reference) and
`certify` look at it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runtime.stage import Message, Rejected  # noqa: F401  (re-exported: stages import their messages from here)
from sandbox.services import Service
from sandbox.spec import File

ErrorType = Literal["analysis_error", "command_error", "hallucination", "requirement_violation", "verification_failure"]
"""TermiGen's five error types."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a task."""


class Blueprint(Part, frozen=True, kw_only=True):
    """What is asked of the drafter: one cell of the taxonomy, all drawn from the item's own seed."""

    index: int
    seed: int
    """The item's seed: everything random about the item derives from it."""
    category: str
    complexity: str
    scenario: str
    tier: int
    tools: tuple[str, ...]
    level: int
    """1 (one command) to 10 (chains of ten and more)."""
    style: str = "exact"
    """Instruction style: from exact to vague; `terse` is one short sentence a job."""
    families: tuple[str, ...] = ()
    """Only these task families, where there are families; empty: any that suit."""
    persona: str = ""
    """Who asks, by the way they write: one of the taxonomy's personas; empty: nobody in particular."""


class Mistake(Part, frozen=True, kw_only=True):
    """A typical wrong turn, known by construction."""

    error_type: ErrorType
    command: str
    """Runs instead of `Reference.commands[step]`."""
    step: int
    reason: str
    """Why someone would think it right: becomes the thought of the injected step."""
    repair: tuple[str, ...] = ()
    """Commands that undo the damage before the reference goes on; empty when repeating the right step repairs it."""


class Reference(Part, frozen=True, kw_only=True):
    """A way to do the task: commands for one persistent session, in order."""

    commands: tuple[str, ...]
    thoughts: tuple[str, ...] = ()
    """One per command; what a person would think before typing it."""


class Truth(Part, frozen=True, kw_only=True):
    """Private: never shown to an agent."""

    notes: str = ""
    """What the drafter knows about the right answer, in words or JSON."""
    strings: tuple[str, ...] = ()
    """Literal answers that must not occur in instruction or environment (scanned for in the built image)."""


class Draft(Part, frozen=True, kw_only=True):
    """The task before it has an environment."""

    title: str
    """Short, for people; also the slug of the directory."""
    instruction: str
    truth: Truth
    category: str
    difficulty: Literal["easy", "medium", "hard"]
    tags: tuple[str, ...]
    level: int


class Environment(Part, frozen=True, kw_only=True):
    """What the agent will find: a Dockerfile that starts with the base lines, the files it copies, initial tests."""

    dockerfile: str
    files: tuple[File, ...]
    initial_tests: str
    """A pytest module about the starting state: prerequisites only, no outputs."""
    services: tuple[Service, ...] = ()
    """What runs in it before anyone works there. The last lines of `dockerfile` are their entry point."""
    memory_mb: int = 2048
    network: bool = False


class Attempt(Part, frozen=True, kw_only=True):
    """One solver's attempt, graded."""

    index: int
    reward: float | None
    failure: str
    commands: tuple[str, ...]
    turns: int
    duration_s: float = 0.0


class Sampled(Message, frozen=True, kw_only=True, tag=True):
    blueprint: Blueprint


class Drafted(Message, frozen=True, kw_only=True, tag=True):
    blueprint: Blueprint
    draft: Draft
    round: int = 1


class Reviewed(Message, frozen=True, kw_only=True, tag=True):
    blueprint: Blueprint
    draft: Draft


class Furnished(Message, frozen=True, kw_only=True, tag=True):
    blueprint: Blueprint
    draft: Draft
    environment: Environment


class Examined(Message, frozen=True, kw_only=True, tag=True):
    blueprint: Blueprint
    draft: Draft
    environment: Environment
    final_tests: str
    """A pytest module about the end state; every test fails by assertion on the untouched environment or is a guard."""
    inventory: tuple[str, ...]
    """Names of all its tests, as collected."""
    failing: tuple[str, ...]
    """Names of those that failed on the untouched environment, by assertion; the others are guards."""


class Solved(Message, frozen=True, kw_only=True, tag=True):
    examined: Examined
    attempts: tuple[Attempt, ...]
    reference: Reference
    """The known reference (procedural) or the shortest successful attempt (chat)."""
    measured: tuple[Attempt, ...] = ()
    """Attempts of the policy that the difficulty band is about, where that is not the author's solver."""


class Certified(Message, frozen=True, kw_only=True, tag=True):
    solved: Solved
    certificate: bytes
    """`certificate.json` as it will be written."""


class Selected(Message, frozen=True, kw_only=True, tag=True):
    """A certified candidate that belongs to the set. An item of its own: the candidate's ended there."""

    certified: Certified


class Published(Message, frozen=True, kw_only=True, tag=True):
    directory: str
    task_hash: str
    category: str
    difficulty: str
    pass_rate: float
