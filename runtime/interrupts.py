"""Ctrl-C, three times: drain, stop and still clean up, leave.

    with interrupts(cleanup="termloom gc --run 7") as stop:
        async with engine, bus, store:
            stop.on_drain(runner.drain)
            await runner.run()

First signal (SIGINT or SIGTERM): what is in work finishes, nothing new is taken up. Second: the block is cancelled, the
clean-up around it still runs. Third: the process leaves at once and prints the command that cleans up after it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130


class Interrupted(Exception):
    """The user stopped the command before its end; nothing is lost."""

    def __init__(self, cleanup: str) -> None:
        super().__init__(f"stopped. What is unfinished can be resumed; '{cleanup}' removes what is left behind")


class Interrupts:
    """Counts signals and does what each asks for."""

    def __init__(self, cleanup: str) -> None:
        self._cleanup, self._count = cleanup, 0
        self._drain: Callable[[], None] = lambda: None
        self.scope = anyio.CancelScope()

    def on_drain(self, drain: Callable[[], None]) -> None:
        """What the first signal does; at once when it has come already."""
        self._drain = drain
        if self._count:
            drain()

    def signal(self) -> None:
        self._count += 1
        if self._count == 1:
            _say("finishing what is in work; press Ctrl-C again to stop now")
            self._drain()
        elif self._count == 2:
            _say("stopping and cleaning up; press Ctrl-C again to leave at once")
            self.scope.cancel()
        else:
            _say(f"left without cleaning up; run '{self._cleanup}'")
            os._exit(EXIT_CODE)


@contextmanager
def interrupts(*, cleanup: str) -> Iterator[Interrupts]:
    """Handle signals within the block, in the main thread's event loop.

    The handlers stay while the block unwinds, so put the engine inside it: the third signal must reach its clean-up.

    Raises: Interrupted when the second signal cancelled the block.
    """
    state, loop = Interrupts(cleanup), asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, state.signal)
    try:
        with state.scope:
            yield state
        if state.scope.cancelled_caught:
            raise Interrupted(cleanup)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # its reader has gone: what the signal asks for is done all the same
        sys.stderr.write(f"termloom: {line}\n")
        sys.stderr.flush()
