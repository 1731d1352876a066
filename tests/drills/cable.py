"""The network between a client and a server on loopback, which can be cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal, Self

import anyio
from anyio import AsyncContextManagerMixin
from anyio.abc import ByteStream, SocketAttribute


class Cable(AsyncContextManagerMixin):
    """Forwards connections to `target` while it is whole. Use as an async context manager.

    Dropped: every connection is closed, and so is each new one. Mute: connections stay open and nothing comes through,
    which is what a client sees of a router that has died.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._state: Literal["whole", "dropped", "mute"] = "whole"
        self._carried: set[anyio.CancelScope] = set()
        self.port = 0

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._carry)
            yield self
            group.cancel_scope.cancel()

    def cut(self, how: Literal["dropped", "mute"]) -> None:
        self._state = how
        if how == "dropped":
            self._close_all()

    def mend(self) -> None:
        """Connections that were mute do not come back to life."""
        self._state = "whole"
        self._close_all()

    def _close_all(self) -> None:
        for scope in tuple(self._carried):
            scope.cancel()

    async def _carry(self, client: ByteStream) -> None:
        async with client:
            if self._state == "dropped":
                return
            with anyio.CancelScope() as scope:
                self._carried.add(scope)
                try:
                    async with (
                        await anyio.connect_tcp("127.0.0.1", self._target) as server,
                        anyio.create_task_group() as group,
                    ):
                        group.start_soon(self._pump, client, server, group.cancel_scope)
                        group.start_soon(self._pump, server, client, group.cancel_scope)
                finally:
                    self._carried.discard(scope)

    async def _pump(self, source: ByteStream, sink: ByteStream, both: anyio.CancelScope) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async for chunk in source:
                if self._state == "whole":
                    await sink.send(chunk)
        both.cancel()
