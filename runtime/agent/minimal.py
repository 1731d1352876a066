"""The papers' agent: think, one command, observe, in one context that only grows."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.agent.kind import Acted, CountTokens, Opening
from runtime.agent.observation import observe
from runtime.agent.parser import Action, Command, Malformed, correction, parse_action
from runtime.agent.settings import AgentSettings
from runtime.chat.messages import ChatMessage
from runtime.chat.prompts import PromptLibrary, Rendered
from runtime.trajectory import Turn
from sandbox.engine import Session

LIBRARY = PromptLibrary("runtime.agent")

_SHORTEST_S = 1.0
"""A command gets at least this long, so that the last one before the deadline is not a time-out by itself."""


class MinimalAgent:
    """See `runtime.agent.kind.Agent`."""

    def __init__(self, settings: AgentSettings, session: Session, count_tokens: CountTokens) -> None:
        self._settings, self._session, self._count_tokens = settings, session, count_tokens

    async def open(self, instruction: str) -> Opening:
        return open_conversation(instruction, self._settings)

    def read(self, text: str) -> Action:
        return parse_action(text)

    def correct(self, malformed: Malformed, *, truncated_at: int | None) -> str:
        return correction(malformed.problem, truncated_at=truncated_at)

    async def act(self, command: Command, *, left_s: float) -> Acted:
        timeout_s = min(self._settings.command_timeout_s, max(left_s, _SHORTEST_S))
        result = await self._session.run(command.command, timeout_s=timeout_s)
        seen = observe(
            result,
            max_tokens=self._settings.observation_tokens,
            count_tokens=self._count_tokens,
            timeout_s=timeout_s,
        )
        return Acted(result=result, observation=seen)

    async def renew(self, opening: Opening, turns: Sequence[Turn]) -> tuple[ChatMessage, ...]:
        return ()


def open_conversation(instruction: str, settings: AgentSettings) -> Opening:
    """System prompt and instruction, without a session: what minimal and memory episodes begin with."""
    prompt = LIBRARY.render(
        settings.prompt, command_timeout_s=f"{settings.command_timeout_s:g}", max_turns=settings.max_turns
    )
    messages = (ChatMessage(role="system", content=prompt.text), ChatMessage(role="user", content=instruction))
    return Opening(messages=messages, prompt_version=version_of(prompt))


def version_of(prompt: Rendered) -> str:
    """As a trajectory records it."""
    return f"{prompt.name}@{prompt.version}:{prompt.sha256[:12]}"
