"""Single flight: equal work asked for at the same time is done once, and all who asked get what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from sandbox.docker.client import ENGINE
from sandbox.errors import EngineFault

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.value: T | None = None
        self.error: Exception | None = EngineFault(ENGINE, "waiting", "the engine was closed meanwhile")


class SingleFlight(Generic[T]):
    """The work runs in `tasks`: one who waits may be cancelled, the work goes on for the others."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._flights: dict[str, _Flight[T]] = {}

    async def run(self, key: str, work: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """What `work` gives, and whether it was started by this call. Raises: what `work` raises."""
        flight = self._flights.get(key)
        first = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._tasks.start_soon(self._fly, key, flight, work)
        await flight.landed.wait()
        if flight.error is not None:
            raise flight.error
        assert flight.value is not None
        return flight.value, first

    async def _fly(self, key: str, flight: _Flight[T], work: Callable[[], Awaitable[T]]) -> None:
        try:
            flight.value, flight.error = await work(), None
        except Exception as error:  # handed to everyone who waits
            flight.error = error
        finally:
            del self._flights[key]
            flight.landed.set()
