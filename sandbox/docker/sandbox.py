"""A started sandbox on a Docker-compatible engine: `Sandbox` and `ShellHost` over one container."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from sandbox.docker import archive
from sandbox.docker.client import REMOVE_S, TRANSFER_S, Absent, answering
from sandbox.docker.container import Container
from sandbox.docker.process import ContainerProcess, start_process
from sandbox.engine import Session, User
from sandbox.errors import EngineFault, SandboxLost, TransferRefused
from sandbox.spec import ExecResult, File, SandboxSpec
from sandbox.transport import Duplex

if TYPE_CHECKING:
    import aiohttp

    from sandbox.docker.engine import DockerEngine

_DRAIN_S = 5.0
_MODE_TYPE = 0x8F280000
"""The bits of Go's `fs.FileMode` that tell a file's type; none is set for a regular file."""
_TAR_OVERHEAD = 16 * 1024
_NO_SUCH_PATH = ("not a directory", "too many links", "too many levels of symbolic links", "file name too long")
"""How an engine words that a path names nothing, beside its proper answer."""


class DockerSandbox:
    """Made by `DockerEngine.create`."""

    def __init__(self, engine: DockerEngine, container: Container) -> None:
        self._engine, self._container = engine, container
        self._removed = False

    @property
    def id(self) -> str:
        return self._container.sandbox_id

    @property
    def spec(self) -> SandboxSpec:
        return self._container.spec

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        user: User = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        output_limit: int = 1 << 20,
    ) -> ExecResult:
        container = self._container
        process = await start_process(
            container, argv, user=user, cwd=cwd or container.image.cwd, env=env, stdin=bool(stdin), marked=True
        )
        output = {"out": _Head(output_limit), "err": _Head(output_limit)}
        started = time.monotonic()
        try:
            if stdin:
                process.feed(stdin)
            with anyio.move_on_after(timeout_s) as limit:
                await _collect(process, output)
            if limit.cancelled_caught:
                await self._stop(process)
                with anyio.move_on_after(_DRAIN_S):
                    await _collect(process, output)
        finally:
            await process.aclose()
        return ExecResult(
            exit_code=None if limit.cancelled_caught else process.exit_code,
            stdout=bytes(output["out"].data),
            stderr=bytes(output["err"].data),
            timed_out=limit.cancelled_caught,
            truncated=output["out"].truncated or output["err"].truncated,
            duration_s=time.monotonic() - started,
        )

    async def _stop(self, process: ContainerProcess) -> None:
        """Kill a process; the whole sandbox when that does not help."""
        try:
            await process.kill()
        except EngineFault as fault:
            await self._container.kill()
            raise SandboxLost(self.id, "a process outlived being killed") from fault

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Duplex:
        """Start a process as the agent user. Raises: SandboxLost, EngineFault."""
        return await start_process(self._container, argv, user="agent", cwd=cwd, env=env, stdin=True)

    async def open_session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, output_limit: int = 64 * 1024
    ) -> Session:
        from sandbox.session import ShellSession

        return await ShellSession.open(
            self, cwd=cwd or self._container.image.cwd, env=env or {}, output_limit=output_limit
        )

    async def put(self, files: Sequence[File]) -> None:
        packed = archive.pack((archive.absolute(file.path), file) for file in files)
        if directories := archive.agent_directories(files):
            await self.exec(["mkdir", "-p", "--", *directories], cwd="/")
        with answering("placing files", TRANSFER_S, sandbox_id=self.id):
            async with self._container.client.request(
                "PUT", f"{self._container.path}/archive", {"path": "/"}, data=packed, content_type="application/x-tar"
            ):
                pass

    async def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        query = {"path": archive.absolute(path)}
        try:
            with answering("taking a file", TRANSFER_S, sandbox_id=self.id):
                async with self._container.client.request("GET", f"{self._container.path}/archive", query) as response:
                    if not _is_regular(response, path, max_bytes):
                        return None
                    return archive.sole_file(await _read_bounded(response, path, max_bytes + _TAR_OVERHEAD))
        except Absent:
            return None
        except EngineFault as fault:
            if any(words in fault.reason for words in _NO_SUCH_PATH):
                return None
            raise

    async def freeze(self) -> str:
        await self._container.kill()
        return await self._engine.commit(self._container)

    async def remove(self) -> None:
        if not self._removed:
            await self._engine.remove(self.id)
            self._removed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.move_on_after(REMOVE_S, shield=True):
            await self.remove()


class _Head:
    """The first bytes of a stream, up to a limit; the rest is read and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.truncated = False

    def add(self, chunk: bytes) -> None:
        room = self._limit - len(self.data)
        self.data += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room


async def _collect(process: ContainerProcess, output: Mapping[str, _Head]) -> None:
    while (chunk := await process.receive()) is not None:
        output[chunk[0]].add(chunk[1])


def _is_regular(response: aiohttp.ClientResponse, path: str, max_bytes: int) -> bool:
    """From the engine's stat of the path, which comes before any content."""
    stat: dict[str, Any] = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
    if stat["mode"] & _MODE_TYPE:
        return False
    if stat["size"] > max_bytes:
        raise TransferRefused(path, f"it has {stat['size']} bytes, more than {max_bytes}")
    return True


async def _read_bounded(response: aiohttp.ClientResponse, path: str, limit: int) -> bytes:
    """The body; the file may have grown since the engine looked."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise TransferRefused(path, f"it grew beyond {limit} bytes while it was read")
    return bytes(body)
