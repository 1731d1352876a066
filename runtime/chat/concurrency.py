"""How many calls may be in flight: additive increase, multiplicative decrease, and the gate in front of the HTTP pool.

Invariants:
- `Controller` is a pure state machine: no clock, no event loop. `floor <= limit <= cap` always.
- A call that started before the last cut cannot cut again: one overload is answered once, however many calls felt it.
- The limit grows only while it is what holds calls back: fast until the endpoint says where its own limit is.
- Slowness is judged among calls of one kind, by two windows in a row: latencies have long tails, and a run that goes
  over from long answers to short ones has not become slower.
- The gate admits first come, first served, in constant time, and never admits more than the limit. The HTTP pool behind
  it is as large as the cap, so nothing ever queues there.
"""

from __future__ import annotations

import enum
import statistics
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
    """Slow means: the median pace of two windows in a row is this many times the best one seen."""
    window: int = Field(default=64, ge=1)
    """Paces in a window, at least; a limit above it makes longer windows. The median of 64 paces that are as uneven as
    those of real endpoints (log-normal, sigma 1) lies within a third of the true one."""

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


_SLOW_WINDOWS = 2
"""In a row: one slow window is chance now and then, among hundreds."""


@dataclass
class _Pace:
    """What is known of the pace of one kind of calls."""

    window: list[float] = field(default_factory=list)
    best: float | None = None
    slow: int = 0
    """Slow windows in a row."""


@dataclass(frozen=True)
class Ticket:
    """The right to be in flight, marked with the number of cuts before it was given."""

    epoch: int


class Controller:
    """AIMD on the number of calls in flight, after a start that doubles it with every round."""

    def __init__(self, settings: ConcurrencySettings) -> None:
        self.settings = settings
        self.limit = settings.start
        self.in_flight = 0
        self.cuts = 0
        self._credit = 0
        self._paces: defaultdict[str, _Pace] = defaultdict(_Pace)
        """By kind of call."""

    def try_enter(self) -> Ticket | None:
        """A ticket when one more call may fly, else None."""
        if self.in_flight >= self.limit:
            return None
        self.in_flight += 1
        return Ticket(self.cuts)

    def leave(self, ticket: Ticket, outcome: Outcome, pace_s: float | None = None, *, kind: str = "") -> None:
        """Give the ticket back. `pace_s` is seconds per token of the answer, where known; `kind` says of what call."""
        held_back = self.in_flight >= self.limit
        self.in_flight -= 1
        if outcome is Outcome.OVERLOADED and ticket.epoch == self.cuts:
            self._cut(self.settings.overload_factor)
        elif outcome is Outcome.OK and ticket.epoch == self.cuts:
            self._grow(held_back=held_back)
            self._watch(pace_s, self._paces[kind])

    def _cut(self, factor: float) -> None:
        self.limit = max(self.settings.floor, int(self.limit * factor))
        self.cuts += 1
        self._credit = 0
        for pace in self._paces.values():
            pace.window.clear()

    def _grow(self, *, held_back: bool) -> None:
        """One more for each good answer until the first cut, then for each full limit's worth of them."""
        if not held_back:
            return
        self._credit += 1
        if self.cuts == 0 or self._credit >= self.limit:
            self.limit = min(self.settings.cap, self.limit + 1)
            self._credit = 0

    def _watch(self, pace_s: float | None, pace: _Pace) -> None:
        if pace_s is None:
            return
        pace.window.append(pace_s)
        if len(pace.window) < max(self.settings.window, self.limit):
            return
        median = statistics.median(pace.window)
        pace.window.clear()
        if pace.best is None or median <= self.settings.slow_tolerance * pace.best:
            pace.best = median if pace.best is None else min(median, pace.best)
            pace.slow = 0
            return
        pace.slow += 1
        if pace.slow >= _SLOW_WINDOWS:
            self._cut(self.settings.slow_factor)
            pace.slow = 0
            # What is slow for good becomes the measure after some windows, else the limit would stay at the floor.
            pace.best *= 1.1


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
    async def slot(self, kind: str = "") -> AsyncIterator[Slot]:
        """Wait for admission; the slot is given back on the way out, whatever happens.

        Paces are compared among calls of one `kind`.
        """
        began = anyio.current_time()
        slot = Slot(await self._enter(), anyio.current_time() - began)
        try:
            yield slot
        finally:
            self._leave(slot.ticket, slot.outcome, slot.pace_s, kind)

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
                self._leave(waiter.ticket, Outcome.NEUTRAL, None, "")
            raise
        assert waiter.ticket is not None
        return waiter.ticket

    def _leave(self, ticket: Ticket, outcome: Outcome, pace_s: float | None, kind: str) -> None:
        self.controller.leave(ticket, outcome, pace_s, kind=kind)
        while self._queue and (given := self.controller.try_enter()) is not None:
            waiter, _ = self._queue.popitem(last=False)
            waiter.ticket = given
            waiter.turn.set()
