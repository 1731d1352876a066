"""A signal that wakes those who wait."""

from __future__ import annotations

import anyio


class Signal:
    """Each who is woken looks again for what it wants, under its own condition."""

    def __init__(self) -> None:
        self._waiting: dict[anyio.Event, None] = {}
        """In the order of their coming. Most notifications meet nobody, and cost nothing."""

    def notify(self) -> None:
        """Wake all."""
        while self._waiting:
            self.notify_one()

    def notify_one(self) -> None:
        """Wake who has waited longest."""
        if self._waiting:
            event = next(iter(self._waiting))
            del self._waiting[event]
            event.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Until woken, or for so long."""
        event = anyio.Event()
        self._waiting[event] = None
        try:
            if timeout_s is None:
                await event.wait()
            else:
                with anyio.move_on_after(timeout_s):
                    await event.wait()
        finally:
            self._waiting.pop(event, None)
