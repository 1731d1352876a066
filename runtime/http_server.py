"""Serves one ASGI application from a listener, in the caller's event loop and task group.

uvicorn without signal handlers, and with an event in place of its ten ticks a second: an idle server costs nothing, and
leaving the block ends it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import uvicorn
from starlette.types import ASGIApp

_GRACE_S = 2.0
"""For answers under way when the server ends; whoever streams should end by itself."""


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, *, faults: Literal["logged", "silent"] = "silent"
) -> AsyncIterator[None]:
    """Serve within the block. Answers under way at its end have a moment to finish.

    Args:
        faults: what an application raises is answered with 500; `logged` is for a process that keeps a log, see
            `runtime.logs`: in any other it would be printed on the terminal.
    """
    closing = anyio.Event()
    server = _Server(_config(app, "error" if faults == "logged" else "critical"), closing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.serving.wait()
        try:
            yield
        finally:
            closing.set()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, closing: anyio.Event) -> None:
        super().__init__(config)
        self.serving = anyio.Event()
        self._closing = closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    async def main_loop(self) -> None:
        await self._closing.wait()


def _config(app: ASGIApp, log_level: str) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="h11",
        loop="none",
        log_config=None,
        log_level=log_level,
        access_log=False,
        date_header=False,
        server_header=False,
        backlog=4096,
        timeout_graceful_shutdown=int(_GRACE_S),
    )
