"""Named limits on what goes on at once: `chat`, `build`, `create`, `run`, `grade`, `score`.

One limit a kind of work, so that a build never holds the place of a running session. Who holds and who waits is known
by item and since when: the watchdog and the dashboard read it from here.

Invariants:
- No more than a limit's size hold it; lowering the size lets holders finish and admits nobody until there is room.
- A place is given back however the work ends; a cancelled wait leaves no trace.
- Waiters are admitted in the order in which they came.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import anyio
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


class Limits:
    """A set of named limits. Lives in one event loop."""

    def __init__(self, sizes: Mapping[str, int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiters = {name: anyio.CapacityLimiter(size) for name, size in sizes.items()}
        self._claims: dict[object, Claim] = {}

    @asynccontextmanager
    async def take(self, limit: str, *, item: str) -> AsyncIterator[None]:
        """Hold one place of `limit` for `item`. Raises: KeyError for an unknown limit."""
        limiter, borrower = self._limiters[limit], object()
        self._claims[borrower] = Claim(limit=limit, item=item, state="waiting", since=self._clock())
        try:
            await limiter.acquire_on_behalf_of(borrower)
            try:
                self._claims[borrower] = Claim(limit=limit, item=item, state="holding", since=self._clock())
                yield
            finally:
                limiter.release_on_behalf_of(borrower)
        finally:
            del self._claims[borrower]

    def resize(self, limit: str, size: int) -> None:
        """Change a limit while it is in use."""
        self._limiters[limit].total_tokens = size

    def of(self, item: str) -> list[Claim]:
        """What an item holds and waits for, oldest first."""
        return [claim for claim in self._claims.values() if claim.item == item]

    def state(self) -> list[LimitState]:
        return [self._state(name) for name in self._limiters]

    def _state(self, name: str) -> LimitState:
        claims = [claim for claim in self._claims.values() if claim.limit == name]
        waits = [self._clock() - claim.since for claim in claims if claim.state == "waiting"]
        return LimitState(
            limit=name,
            size=int(self._limiters[name].total_tokens),
            holding=len(claims) - len(waits),
            waiting=len(waits),
            longest_wait_s=max(waits, default=0.0),
        )
