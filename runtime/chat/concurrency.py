"""How many calls may be in flight: additive increase, multiplicative decrease, and the gate in front of the HTTP pool.

Invariants:
- `Controller` is a pure state machine: no clock, no event loop. `floor <= limit <= cap` always.
- A call that started before the last cut cannot cut again: one overload is answered once, however many calls felt it.
- The limit grows only while it is what holds calls back.
- The gate admits first come, first served, in constant time, and never admits more than the limit. The HTTP pool behind
  it is as large as the cap, so nothing ever queues there.
"""

from __future__ import annotations

import enum
import statistics
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, ConfigDict, Field, model_validator


class ConcurrencySettings(BaseModel):
    """Bounds and reflexes of the controller."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: int = Field(default=4, ge=1)
    """Never fewer: a run must go on, however slow the endpoint."""
    start: int = Field(default=20, ge=1)
    """High enough to be useful at once, low enough for the smallest hosted quota."""
    cap: int = Field(default=256, ge=1)
    """Size of the connection pool."""
    overload_factor: float = Field(default=0.5, gt=0, lt=1)
    """What is left of the limit after a 429, 503 or 529."""
    slow_factor: float = Field(default=0.8, gt=0, lt=1)
    """What is left after answers became slow: gentler, because slowness is weaker evidence."""
    slow_tolerance: float = Field(default=2.0, gt=1)
    """Slow means: the median pace of a window is this many times the best one seen."""
    window: int = Field(default=16, ge=1)
    """Paces in a window, at least; a limit above it makes longer windows."""

    @model_validator(mode="after")
    def _ordered(self) -> ConcurrencySettings:
        if not self.floor <= self.start <= self.cap:
            raise ValueError(f"floor <= start <= cap does not hold: {self.floor}, {self.start}, {self.cap}")
        return self


class Outcome(enum.Enum):
    """What a finished call tells the controller."""

    OK = "ok"
    OVERLOADED = "overloaded"
    NEUTRAL = "neutral"
    """Says nothing about the endpoint's load: cancelled, rejected, connection lost."""


@dataclass(frozen=True)
class Ticket:
    """The right to be in flight, marked with the number of cuts before it was given."""

    epoch: int


class Controller:
    """AIMD on the number of calls in flight."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self.settings = settings
        self.limit = settings.start
        self.in_flight = 0
        self.cuts = 0
        self._credit = 0
        self._paces: list[float] = []
        self._best_pace: float | None = None

    def try_enter(self) -> Ticket | None:
        """A ticket when one more call may fly, else None."""
        if self.in_flight >= self.limit:
            return None
        self.in_flight += 1
        return Ticket(self.cuts)

    def leave(self, ticket: Ticket, outcome: Outcome, pace_s: float | None = None) -> None:
        """Give the ticket back. `pace_s` is seconds per token of the answer, where known."""
        held_back = self.in_flight >= self.limit
        self.in_flight -= 1
        if outcome is Outcome.OVERLOADED and ticket.epoch == self.cuts:
            self._cut(self.settings.overload_factor)
        elif outcome is Outcome.OK and ticket.epoch == self.cuts:
            self._grow(held_back=held_back)
            self._watch(pace_s)

    def _cut(self, factor: float) -> None:
        self.limit = max(self.settings.floor, int(self.limit * factor))
        self.cuts += 1
        self._credit = 0
        self._paces.clear()

    def _grow(self, *, held_back: bool) -> None:
        """One more for each full limit's worth of good answers."""
        if not held_back:
            return
        self._credit += 1
        if self._credit >= self.limit:
            self.limit = min(self.settings.cap, self.limit + 1)
            self._credit = 0

    def _watch(self, pace_s: float | None) -> None:
        if pace_s is None:
            return
        self._paces.append(pace_s)
        if len(self._paces) < max(self.settings.window, self.limit):
            return
        median = statistics.median(self._paces)
        self._paces.clear()
        if self._best_pace is not None and median > self.settings.slow_tolerance * self._best_pace:
            self._cut(self.settings.slow_factor)
            # What is slow for good becomes the measure after some windows, else the limit would stay at the floor.
            self._best_pace *= 1.1
        else:
            self._best_pace = median if self._best_pace is None else min(median, self._best_pace)


class Slot:
    """One admission. Whoever holds it says how the call went before leaving."""

    def __init__(self, ticket: Ticket, queue_wait_s: float) -> None:
        self.ticket = ticket
        self.queue_wait_s = queue_wait_s
        self.outcome = Outcome.NEUTRAL
        self.pace_s: float | None = None

    def went_well(self, pace_s: float | None) -> None:
        self.outcome, self.pace_s = Outcome.OK, pace_s

    def was_overloaded(self) -> None:
        self.outcome = Outcome.OVERLOADED


class _Waiter:
    """One call in the queue. Its ticket is there before it wakes."""

    def __init__(self) -> None:
        self.turn = anyio.Event()
        self.ticket: Ticket | None = None


class Gate:
    """The async shell around one controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._queue: OrderedDict[_Waiter, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for admission; the slot is given back on the way out, whatever happens."""
        began = anyio.current_time()
        slot = Slot(await self._enter(), anyio.current_time() - began)
        try:
            yield slot
        finally:
            self._leave(slot.ticket, slot.outcome, slot.pace_s)

    async def _enter(self) -> Ticket:
        await checkpoint()
        # Nobody can overtake: a free place is given to the queue in the moment it becomes free.
        return self.controller.try_enter() or await self._wait()

    async def _wait(self) -> Ticket:
        waiter = _Waiter()
        self._queue[waiter] = None
        try:
            await waiter.turn.wait()
        except BaseException:
            if waiter.ticket is None:
                del self._queue[waiter]
            else:
                self._leave(waiter.ticket, Outcome.NEUTRAL, None)
            raise
        assert waiter.ticket is not None
        return waiter.ticket

    def _leave(self, ticket: Ticket, outcome: Outcome, pace_s: float | None) -> None:
        self.controller.leave(ticket, outcome, pace_s)
        while self._queue and (given := self.controller.try_enter()) is not None:
            waiter, _ = self._queue.popitem(last=False)
            waiter.ticket = given
            waiter.turn.set()
