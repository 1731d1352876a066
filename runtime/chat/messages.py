"""What is asked of a model and what comes back.

Invariants:
- A request is plain data. Everything that can change the answer is part of `ChatRequest.key`, and so is the nonce with
  which the caller says which draw of that answer it wants (item, attempt, turn): equal keys are one call, paid once.
- `Completion.text` is the answer, never the reasoning. Empty, reasoning-only and cut answers are results that the
  caller can tell apart (`is_empty`, `reasoning_only`, `finish`), not exceptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

Finish = Literal["stop", "length", "filtered", "abort"]
"""stop: the model ended; length: cut at `max_tokens`; filtered: by the endpoint's filter; abort: by the server."""

PURPOSE_HEADER = "X-Termloom-Purpose"
"""Tells the endpoint's log (and the scripted server's counters) who asks."""
DRAW_HEADER = "X-Termloom-Draw"
"""Tells them which draw is asked for: the request's nonce, percent-encoded."""

_canonical = msgspec.json.Encoder(order="sorted")


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call."""

    messages: tuple[ChatMessage, ...]
    purpose: str
    """Who asks: `drafter`, `solve`, ... Counted apart in spending and metrics."""
    temperature: float | None = 1.0
    """None leaves it to the endpoint; some reasoning models accept no value."""
    max_tokens: int = 2048
    nonce: str = ""
    """Which draw: `<item>/<attempt>/<turn>`."""

    @property
    def prompt_estimate(self) -> int:
        """Rough number of tokens of the prompt."""
        return sum(estimate_tokens(m.content) for m in self.messages)

    def key(self, *, model: str, extra: Mapping[str, Any]) -> str:
        """SHA-256 over all that matters, `extra` being what the endpoint is sent beside the request."""
        return hashlib.sha256(_canonical.encode([model, self, dict(extra)])).hexdigest()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    text: str
    finish: Finish
    model: str
    reasoning: str = ""
    tool: str = ""
    """Name of the function when the answer came as a tool call: `text` then holds its arguments as JSON."""
    raw_id: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_estimated: bool = False
    """The endpoint told no usage; the counts are estimates from the text's length."""
    queue_wait_s: float = 0.0
    """Waiting for admission on our side. No part of the model's time."""
    latency_s: float = 0.0
    """From the first admission to the answer, tries and back-off included, `queue_wait_s` excluded."""
    cached: bool = False
    """Taken from the ledger: nothing was paid and nobody waited."""

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()

    @property
    def reasoning_only(self) -> bool:
        return self.is_empty and bool(self.reasoning.strip())


class Completer(Protocol):
    """Whoever answers requests; `ChatClient` does."""

    async def complete(self, request: ChatRequest) -> Completion:
        """Raises: the subclasses of ChatError."""
        ...


def estimate_tokens(text: str) -> int:
    """Rough number of tokens: one in four bytes of UTF-8, never 0."""
    return len(text.encode("utf-8", "replace")) // 4 + 1
