"""One container of ours as the engine sees it: its state, its end, its removal.

Invariants:
- `lost` speaks from the engine's record, read after the end has settled: memory, lifetime, kill or removal.
- `remove` is idempotent, and done only when the engine no longer knows the container.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from sandbox.docker.client import CALL_S, CREATE_S, ENGINE, Absent, Client, answering
from sandbox.docker.config import ImageFacts
from sandbox.docker.labels import container_name
from sandbox.docker.watch import EventWatch
from sandbox.errors import EngineFault, ImageMissing, SandboxLost
from sandbox.spec import SandboxSpec

_SETTLE_S = 2.0
"""How long the engine's record of a container may lag behind the death of its first process."""


class Container:
    """A created container."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        image: ImageFacts,
        *,
        client: Client,
        watch: EventWatch,
        tasks: TaskGroup,
    ) -> None:
        self.sandbox_id, self.spec, self.image = sandbox_id, spec, image
        self.client, self.watch, self.tasks = client, watch, tasks
        self.key = ""
        """The engine's own id, by which its events name the container."""

    @property
    def path(self) -> str:
        """Where the engine's API has it."""
        return f"containers/{container_name(self.sandbox_id)}"

    async def create(self, config: Mapping[str, Any]) -> None:
        """Create and start. Raises: ImageMissing, EngineFault."""
        try:
            with answering("creating a sandbox", CREATE_S):
                query = {"name": container_name(self.sandbox_id)}
                created = await self.client.ask("POST", "containers/create", query, data=config)
                self.key = created["Id"]
        except Absent as absent:
            raise ImageMissing(ENGINE, self.spec.image) from absent
        with answering("starting a sandbox", CREATE_S):
            await self.client.ask("POST", f"{self.path}/start")

    async def state(self) -> Mapping[str, Any] | None:
        """The engine's record of its state; None when there is no such container."""
        try:
            with answering("inspecting a sandbox", CALL_S, sandbox_id=self.sandbox_id):
                about = await self.client.ask("GET", f"{self.path}/json")
        except SandboxLost:
            return None
        state: Mapping[str, Any] = about["State"]
        return state

    async def running(self) -> bool:
        state = await self.state()
        return bool(state and state["Running"])

    async def ends(self, *, within_s: float = _SETTLE_S) -> bool:
        """Whether it has ended, or does so within the time."""
        with self.watch.ending(self.key) as ended:
            if not await self.running():
                return True
            with anyio.move_on_after(within_s):
                await ended.wait()
        return not await self.running()

    async def lost(self) -> SandboxLost:
        """The fault that tells why it has ended."""
        state = await self.state()
        if state is None:
            reason = "it was removed"
        elif state["Running"]:
            reason = "its first process does not answer"
        elif state.get("OOMKilled"):
            reason = f"out of memory (limit {self.spec.limits.memory_mb} MB)"
        elif state["ExitCode"] == 0:
            reason = f"its lifetime of {self.spec.limits.lifetime_s:g} s is over"
        else:
            reason = f"it was killed (exit code {state['ExitCode']})"
        return SandboxLost(self.sandbox_id, reason)

    async def kill(self) -> None:
        """End every process in it, and wait until the engine confirms."""
        try:
            with answering("killing a sandbox", CREATE_S, sandbox_id=self.sandbox_id):
                await self.client.ask("POST", f"{self.path}/kill", {"signal": "KILL"})
        except SandboxLost:
            pass  # not running, or gone: which of them is told by the wait
        with answering("waiting for the end of a sandbox", CREATE_S, sandbox_id=self.sandbox_id):
            await self.client.ask("POST", f"{self.path}/wait", {"condition": "not-running"})

    async def remove(self) -> None:
        await remove_container(self.client, self.sandbox_id)


async def remove_container(client: Client, sandbox_id: str) -> None:
    """Remove the container of a sandbox, whoever made it. Raises: EngineFault when it is still there afterwards."""
    path = f"containers/{container_name(sandbox_id)}"
    deadline = time.monotonic() + CREATE_S
    while time.monotonic() < deadline:
        try:
            with answering("removing a sandbox", CREATE_S, sandbox_id=sandbox_id):
                await client.ask("DELETE", path, {"force": "1", "v": "1"})
        except SandboxLost:
            return
        except EngineFault as fault:
            if "already in progress" not in fault.reason:
                raise
            await _await_removal(client, path, sandbox_id)
    raise EngineFault(ENGINE, "removing a sandbox", f"it is still there after {CREATE_S:g} s")


async def _await_removal(client: Client, path: str, sandbox_id: str) -> None:
    try:
        with answering("waiting for the removal of a sandbox", CREATE_S, sandbox_id=sandbox_id):
            await client.ask("POST", f"{path}/wait", {"condition": "removed"})
    except SandboxLost:
        pass
