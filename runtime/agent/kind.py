"""What tells one agent from another: its words, how its answer is read, how it acts, what it remembers.

    minimal      one command an answer, one context that only grows: the papers' loop
    memory       the same, and a full context is replaced by a summary of what was done
    terminus-2   keystrokes into a terminal, as JSON: the answer format of Harbor's baseline agent

The loop (`runtime.agent.episode`), its limits, its clock and its record are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.agent.parser import Action, Command, Malformed
from runtime.agent.settings import AgentSettings
from runtime.chat.messages import ChatMessage
from runtime.trajectory import Turn
from sandbox.engine import Session
from sandbox.spec import CommandResult

CountTokens = Callable[[str], int]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What an episode begins with."""

    messages: tuple[ChatMessage, ...]
    """The instruction is in the last one."""
    prompt_version: str


@dataclass(frozen=True, kw_only=True)
class Acted:
    """What came of an action."""

    result: CommandResult
    observation: str
    done: bool = False
    """The action was the agent's last: it confirmed that the task is finished."""


class Agent(Protocol):
    """One agent in one episode, bound to its session."""

    async def open(self, instruction: str) -> Opening:
        """Raises: SandboxLost, EngineFault."""
        ...

    def read(self, text: str) -> Action:
        """Read one answer."""
        ...

    def correct(self, malformed: Malformed, *, truncated_at: int | None) -> str:
        """What a malformed answer is answered with. `truncated_at` is its length in tokens when it was cut there."""
        ...

    async def act(self, command: Command, *, left_s: float) -> Acted:
        """Carry out what was read; `left_s` is left on the episode's clock. Raises: SandboxLost, EngineFault."""
        ...

    async def renew(self, opening: Opening, turns: Sequence[Turn]) -> tuple[ChatMessage, ...]:
        """The messages of a fresh context in place of a full one; none when the agent has no memory.

        Raises: SandboxLost, EngineFault.
        """
        ...


def agent_of(settings: AgentSettings, session: Session, count_tokens: CountTokens) -> Agent:
    """The agent that the settings name, for one episode."""
    from runtime.agent.memory import MemoryAgent
    from runtime.agent.minimal import MinimalAgent
    from runtime.agent.terminus import TerminusAgent

    kinds: dict[str, Callable[[AgentSettings, Session, CountTokens], Agent]] = {
        "minimal": MinimalAgent,
        "memory": MemoryAgent,
        "terminus-2": TerminusAgent,
    }
    return kinds[settings.kind](settings, session, count_tokens)
