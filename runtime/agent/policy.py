"""The seam between the agent loop and whatever decides: a chat endpoint, a token-level policy, a script.

Contract (one suite, `tests/runtime/agent/policy_contract.py`, run by every implementation):
- `act` answers the history and remembers nothing: all that a policy needs for the next turn stands in the history,
  which only grows until an agent with memory begins another. A token-level policy finds the ids of its own turns there
  and never tokenises them again.
- Equal histories with equal keys are one call: acting again after a redelivery pays nothing and gives the same turn.
- Cut, filtered and aborted answers are turns with their `finish`; no answer at all is one of the ChatErrors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from runtime.chat.messages import ChatMessage, ChatRequest, Completer, Completion, Finish, estimate_tokens
from runtime.trajectory import Tokens


class PolicyTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a policy."""

    text: str
    finish: Finish = "stop"
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_s: float = 0.0
    queue_wait_s: float = 0.0
    tokens: Tokens | None = None


History = Sequence[ChatMessage | PolicyTurn]
"""System prompt, instruction, then turn and observation alternately."""


class Policy(Protocol):
    """Decides the next action."""

    async def act(self, history: History, *, max_tokens: int, temperature: float, key: str) -> PolicyTurn:
        """Answer `history`. `key` names the draw: `<item>/<attempt>/<turn>`.

        Raises: the subclasses of ChatError.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Length of `text` in tokens: exact where the policy has a tokeniser, else an estimate."""
        ...

    def count_prompt(self, history: History) -> int:
        """Length of the prompt that `act` makes of `history`: exact, frames of the chat included, where the policy has
        a tokeniser; else as `estimate_prompt`."""
        ...


def estimate_prompt(history: History) -> int:
    """What the last turn reported, and an estimate of what was added since; without frames, which only a tokeniser
    knows."""
    since, tokens = history, 0
    for index, entry in enumerate(history):
        if isinstance(entry, PolicyTurn):
            since, tokens = history[index + 1 :], entry.prompt_tokens + entry.completion_tokens
    return tokens + sum(estimate_tokens(entry.content) for entry in since if isinstance(entry, ChatMessage))


class ChatPolicy:
    """A policy behind a chat endpoint."""

    def __init__(self, client: Completer, *, purpose: str = "solve") -> None:
        self._client = client
        self._purpose = purpose

    async def act(self, history: History, *, max_tokens: int, temperature: float, key: str) -> PolicyTurn:
        completion = await self._client.complete(
            ChatRequest(
                messages=tuple(_as_message(entry) for entry in history),
                purpose=self._purpose,
                temperature=temperature,
                max_tokens=max_tokens,
                nonce=key,
            )
        )
        return PolicyTurn(
            text=_as_action(completion),
            finish=completion.finish,
            reasoning=completion.reasoning,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=completion.completion_tokens,
            model_s=completion.latency_s,
            queue_wait_s=completion.queue_wait_s,
        )

    def count_tokens(self, text: str) -> int:
        return estimate_tokens(text)

    def count_prompt(self, history: History) -> int:
        return estimate_prompt(history)


def _as_message(entry: ChatMessage | PolicyTurn) -> ChatMessage:
    """Endpoints expect the answer back without its reasoning, and some refuse an empty one."""
    if isinstance(entry, ChatMessage):
        return entry
    return ChatMessage(role="assistant", content=entry.text if entry.text.strip() else "(no answer)")


def _as_action(completion: Completion) -> str:
    """The answer's text; a tool call with a command in it, as some servers make of one, becomes the command again."""
    if not completion.tool:
        return completion.text
    try:
        arguments = msgspec.json.decode(completion.text, type=dict[str, object])
    except msgspec.MsgspecError:
        return completion.text
    command = arguments.get("command")
    return f"<command>{command}</command>" if isinstance(command, str) else completion.text
