"""A job in work as people follow it: its numbers and its latest events.

The log is bounded: who follows too slowly is told how many events passed by, and nobody slows the run down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio

from runtime.bus.signal import Signal
from runtime.chat.tally import CallTally
from runtime.daemon.kind import Steered
from runtime.daemon.records import Job
from runtime.events import RunEvent
from runtime.progress import Tally

KEPT_EVENTS = 5000


class EventLog:
    """The latest events, numbered from 0."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        self._events: deque[RunEvent] = deque(maxlen=kept)
        self._next = 0
        self._changed = Signal()
        self._closed = False

    def add(self, event: RunEvent) -> None:
        self._events.append(event)
        self._next += 1
        self._changed.notify()

    def close(self) -> None:
        """No more events will come."""
        self._closed = True
        self._changed.notify()

    def latest(self, count: int) -> list[RunEvent]:
        return list(self._events)[-count:]

    async def follow(self, *, beat_s: float = 15.0) -> AsyncIterator[tuple[int, RunEvent | None]]:
        """(events missed before it, event), from the oldest kept on; an event of None is a sign of life."""
        seen = self._next - len(self._events)
        while True:
            while seen < self._next:
                oldest = self._next - len(self._events)
                missed, seen = max(0, oldest - seen), max(oldest, seen)
                event = self._events[seen - oldest]
                seen += 1
                yield missed, event
            if self._closed:
                return
            await self._changed.wait(beat_s)
            if seen == self._next and not self._closed:
                yield 0, None


@dataclass
class LiveJob:
    """One job that is in work, or was in this daemon's lifetime."""

    job: Job
    tally: Tally
    log: EventLog = field(default_factory=EventLog)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    runner: Steered | None = None
    cancelled: bool = False
    calls: CallTally = field(default_factory=CallTally)
    numbers: dict[str, float] = field(default_factory=dict)
    """Of the newest training step."""

    def listen(self, event: RunEvent) -> None:
        self.tally(event)
        if isinstance(event.numbers, dict):
            self.numbers = event.numbers
        self.log.add(event)
