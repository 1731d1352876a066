"""The engine's event stream: tells when a process or a container of ours has ended.

One connection for each engine, whatever the number of sandboxes. Invariants:
- Events only wake; what happened is read from the engine by inspect. A lost event costs a wait until the deadline that
  every waiter has, never a wrong answer.
- Everybody is woken whenever the stream is opened, again or for the first time: what came before is not on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from sandbox.docker import labels
from sandbox.docker.client import Client, answering, json_lines
from sandbox.errors import SandboxError

_RECONNECT_S = 1.0


class EventWatch:
    """Wakes who waits for the end of an exec or of a container. `run` lives in the engine's task group."""

    def __init__(self, client: Client, owner: str) -> None:
        self._client, self._owner = client, owner
        self._waiting: dict[str, set[anyio.Event]] = {}

    @contextmanager
    def ending(self, *keys: str) -> Iterator[anyio.Event]:
        """An event that is set once any of the execs or containers named by `keys` has ended."""
        woken = anyio.Event()
        for key in keys:
            self._waiting.setdefault(key, set()).add(woken)
        try:
            yield woken
        finally:
            for key in keys:
                waiting = self._waiting[key]
                waiting.discard(woken)
                if not waiting:
                    del self._waiting[key]

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        while True:
            with suppress(SandboxError):
                await self._follow()
            await anyio.sleep(_RECONNECT_S)

    async def _follow(self) -> None:
        filters = {
            "type": ["container"],
            "event": ["die", "destroy", "exec_die"],
            "label": [f"{labels.OWNER}={self._owner}"],
        }
        with answering("following events", math.inf):
            async with self._client.request("GET", "events", {"filters": json.dumps(filters)}) as response:
                for key in list(self._waiting):
                    self._wake(key)
                async for event in json_lines(response):
                    self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        actor = event.get("Actor") or {}
        if str(event.get("Action", "")).startswith("exec_die"):
            self._wake((actor.get("Attributes") or {}).get("execID", ""))
        else:
            self._wake(actor.get("ID", ""))

    def _wake(self, key: str) -> None:
        for woken in self._waiting.get(key, ()):
            woken.set()
