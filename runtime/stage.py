"""A stage: subscribes to one queue, works on one message, returns what came of it.

A stage is declared, not wired: the runner (`runtime.runner`) starts its workers, takes its limits, extends its lease,
commits its result and publishes what it returned. The flow chart in docs and dashboard is drawn from these fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything that travels. `item` names the piece of work all the way through the pipeline.

    The idempotency key on the bus is `<queue>/<item>`, so an item passes each queue once.
    """

    item: str
    run_id: str


class Rejected(Message, frozen=True, kw_only=True, tag=True):
    """Terminal: the item leaves the pipeline. Goes to the queue "rejected" of its run."""

    stage: str
    reason: str
    """A short class, counted in the yield table: `fails_at_start`, `unsolved`, `near_duplicate`, ..."""
    detail: str = ""


class RetryLater(Exception):
    """Raised by a handler: infrastructure is at fault, deliver the message again (not the item's failure)."""

    def __init__(self, reason: str, *, delay_s: float | None = None) -> None:
        self.reason, self.delay_s = reason, delay_s
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Delay before delivery n+1: `min(ceiling, first * 2**(n-1))`, with full jitter."""

    first_s: float = 0.5
    ceiling_s: float = 30.0


Handler = Callable[[Any, Any], Awaitable[Iterable[Message]]]
"""async (message, context) -> messages. `context` is whatever the pipeline's owner gives all its stages."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The declaration. `publishes` maps each message type it may return to the queue it goes to."""

    name: str
    subscribes: str
    takes: type[Message]
    publishes: dict[type[Message], str]
    handler: Handler
    slots: int = 8
    """Messages in work at once. What they do inside is admitted by the named limits that the handler takes."""
    limits: tuple[str, ...] = ()
    """Names of the limiters its handler takes while it works (`chat`, `build`, `create`, `run`, `grade`, `score`):
    documentation and metrics; the handler takes them through `context`, as short as it can."""
    attempts: int = 5
    backoff: Backoff = Backoff()
    deadline_s: float = 3600.0
