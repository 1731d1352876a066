"""Named limits on what goes on at once: `chat`, `build`, `create`, `run`, `grade`, `score`.

One limit a kind of work, so that a build never holds the place of a running session. Who holds and who waits is known
by item and since when: the watchdog and the dashboard read it from here.

Invariants:
- No more than a limit's size hold it; lowering the size lets holders finish and admits nobody until there is room.
- A place is given back however the work ends; a cancelled wait leaves no trace.
- A free place goes to the share that holds the fewest; within a share, waiters are admitted in the order in which they
  came. No place stays free while anybody waits.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, Self

import anyio
import anyio.lowlevel
import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One item's place in one limit, or its wait for one."""

    limit: str
    item: str
    state: Literal["waiting", "holding"]
    since: float
    """On the clock of the limits."""


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard shows of one limit."""

    limit: str
    size: int
    holding: int
    waiting: int
    longest_wait_s: float


class _Limit:
    """One limit: who holds, by share, and who waits."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holding: Counter[str] = Counter()
        self._waiting: dict[str, deque[anyio.Event]] = {}

    async def acquire(self, share: str) -> None:
        await anyio.lowlevel.checkpoint()
        admitted = anyio.Event()
        self._waiting.setdefault(share, deque()).append(admitted)
        self.admit()
        try:
            await admitted.wait()
        except BaseException:
            self._undo(share, admitted)
            raise

    def release(self, share: str) -> None:
        self._holding[share] -= 1
        self.admit()

    def admit(self) -> None:
        """Give what is free to those who wait."""
        while self._waiting and self._holding.total() < self.size:
            share = min(self._waiting, key=lambda waiting: self._holding[waiting])
            self._holding[share] += 1
            self._waiting[share].popleft().set()
            self._forget_if_empty(share)

    def _undo(self, share: str, admitted: anyio.Event) -> None:
        """The wait was cancelled, perhaps in the very moment of being admitted."""
        if admitted.is_set():
            self.release(share)
        else:
            self._waiting[share].remove(admitted)
            self._forget_if_empty(share)

    def _forget_if_empty(self, share: str) -> None:
        if not self._waiting[share]:
            del self._waiting[share]


class Limits:
    """A set of named limits. Lives in one event loop."""

    def __init__(self, sizes: Mapping[str, int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits = {name: _Limit(size) for name, size in sizes.items()}
        self._claims: dict[object, Claim] = {}
        self._share = ""

    def share(self, name: str) -> Self:
        """The same limits, taken on behalf of one of several who compete for them."""
        view = copy.copy(self)
        view._share = name
        return view

    @asynccontextmanager
    async def take(self, limit: str, *, item: str) -> AsyncIterator[None]:
        """Hold one place of `limit` for `item`. Raises: KeyError for an unknown limit."""
        taken, borrower = self._limits[limit], object()
        self._claims[borrower] = Claim(limit=limit, item=item, state="waiting", since=self._clock())
        try:
            await taken.acquire(self._share)
            try:
                self._claims[borrower] = Claim(limit=limit, item=item, state="holding", since=self._clock())
                yield
            finally:
                taken.release(self._share)
        finally:
            del self._claims[borrower]

    def resize(self, limit: str, size: int) -> None:
        """Change a limit while it is in use."""
        self._limits[limit].size = size
        self._limits[limit].admit()

    def of(self, item: str) -> list[Claim]:
        """What an item holds and waits for, oldest first."""
        return [claim for claim in self._claims.values() if claim.item == item]

    def state(self) -> list[LimitState]:
        return [self._state(name) for name in self._limits]

    def _state(self, name: str) -> LimitState:
        claims = [claim for claim in self._claims.values() if claim.limit == name]
        waits = [self._clock() - claim.since for claim in claims if claim.state == "waiting"]
        return LimitState(
            limit=name,
            size=self._limits[name].size,
            holding=len(claims) - len(waits),
            waiting=len(waits),
            longest_wait_s=max(waits, default=0.0),
        )
