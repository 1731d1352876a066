"""A signal that wakes everyone who waits."""

from __future__ import annotations

import anyio


class Signal:
    """Each who is woken looks again for what it wants, under its own condition."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, timeout_s: float | None) -> None:
        """Until the next `notify`, or for so long."""
        event = self._event
        with anyio.move_on_after(timeout_s):
            await event.wait()
