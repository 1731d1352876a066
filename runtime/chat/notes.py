"""Who listens to the model calls of a piece of work: set around the work, found by every client that is used in it.

A listener travels with the task, as a log's bound names do, so that no stage and no player has to hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class CallNote(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one call: answered, or the status with which it failed."""

    at: float
    """Seconds since the epoch."""
    purpose: str
    model: str
    status: int | None
    """Of HTTP; None when there was no answer."""
    latency_s: float
    """Of this try alone; waiting at our own gate is no part of it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def answered(self) -> bool:
        return self.status == 200


OnCall = Callable[[CallNote], None]
"""A listener. It returns at once and never raises."""


def _ignore(_: CallNote) -> None:
    pass


_listener: ContextVar[OnCall] = ContextVar("call_listener", default=_ignore)


@contextmanager
def listening_to_calls(listener: OnCall) -> Iterator[None]:
    """Calls made within the block, and in tasks started there, are told to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell_call(note: CallNote) -> None:
    """Tell whoever listens where this runs."""
    _listener.get()(note)
