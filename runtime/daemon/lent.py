"""The daemon's limits as the process of a job takes them: each place is asked for over the line and given back there.

So a job in a process of its own shares every limit with the others, as fairly as one in the daemon. When the process
ends, however it ends, the daemon has its places back.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio

from runtime.daemon.line import Give, Said, Take
from runtime.limits import Claim, Limits


class LentLimits(Limits):
    """Lives in one event loop. `say` takes a message for the daemon and returns at once."""

    def __init__(self, sizes: Mapping[str, int], say: Callable[[Said], None]) -> None:
        super().__init__(sizes)
        self._say = say
        self._numbers = itertools.count()
        self._asked: dict[int, anyio.Event] = {}

    def granted(self, claim: int) -> None:
        """The daemon says yes; it may be that nobody waits any more."""
        if asked := self._asked.get(claim):
            asked.set()

    @asynccontextmanager
    async def take(self, limit: str, *, item: str) -> AsyncIterator[None]:
        number, granted = next(self._numbers), anyio.Event()
        self._claim(number, Claim(limit=limit, item=item, state="waiting", since=self._clock()))
        self._asked[number] = granted
        self._say(Take(claim=number, limit=limit, item=item))
        try:
            await granted.wait()
            self._claim(number, Claim(limit=limit, item=item, state="holding", since=self._clock()))
            yield
        finally:
            del self._asked[number], self._claims[number]
            self._say(Give(claim=number))

    def _claim(self, number: int, claim: Claim) -> None:
        """Raises: KeyError for an unknown limit."""
        self._limits[claim.limit]
        self._claims[number] = claim
