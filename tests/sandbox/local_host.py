"""A host for shell sessions without an engine: processes of this machine in their own process and mount namespaces.

A test double of `ShellHost` and `Sandbox.exec`. It has no limits and no layers; needs root, `unshare` and `nsenter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import anyio

from sandbox.engine import User
from sandbox.errors import SandboxLost
from sandbox.spec import ExecResult
from sandbox.transport import Duplex

_INIT = "mount -t tmpfs -o mode=1777 tmpfs /tmp && echo ready && exec sleep 1000"
_HIGH_WATER = 1 << 20
UID = "1000"


def usable() -> bool:
    """Whether this machine lets us make namespaces."""
    probe = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True, check=False).returncode == 0


class _Streams(asyncio.SubprocessProtocol):
    """Chunks of both output streams in order of arrival, with back-pressure."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Literal["out", "err"], bytes]] = []
        self.held = 0
        self.ended = False
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.chunks.append(("out" if fd == 1 else "err", data))
        self.held += len(data)
        self._read(self.held < _HIGH_WATER)
        self.changed.set()

    def process_exited(self) -> None:
        self.ended = True
        self.changed.set()

    def take(self) -> tuple[Literal["out", "err"], bytes]:
        chunk = self.chunks.pop(0)
        self.held -= len(chunk[1])
        self._read(self.held < _HIGH_WATER)
        return chunk

    def _read(self, wanted: bool) -> None:
        for fd in (1, 2):
            pipe = self.transport.get_pipe_transport(fd)
            if isinstance(pipe, asyncio.ReadTransport) and pipe.is_reading() != wanted and not pipe.is_closing():
                (pipe.resume_reading if wanted else pipe.pause_reading)()


class LocalDuplex:
    def __init__(self, transport: asyncio.SubprocessTransport, streams: _Streams) -> None:
        self._transport, self._streams = transport, streams

    async def send(self, data: bytes) -> None:
        stdin = self._transport.get_pipe_transport(0)
        if not isinstance(stdin, asyncio.WriteTransport) or stdin.is_closing() or self._streams.ended:
            raise SandboxLost("local", "the process is gone")
        stdin.write(data)

    async def receive(self) -> tuple[Literal["out", "err"], bytes] | None:
        while not self._streams.chunks:
            if self._streams.ended:
                return None
            self._streams.changed.clear()
            await self._streams.changed.wait()
        return self._streams.take()

    async def aclose(self) -> None:
        if not self._streams.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        while not self._streams.ended:
            self._streams.changed.clear()
            await self._streams.changed.wait()
        self._transport.close()


class LocalHost:
    """Use as an async context manager; leaving it kills every process inside."""

    id = "local"

    async def __aenter__(self) -> Self:
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", _INIT]
        self._unshare = await asyncio.create_subprocess_exec(
            *argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert self._unshare.stdout is not None
        assert await self._unshare.stdout.readline() == b"ready\n"
        pid = self._unshare.pid
        children = await anyio.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        self._init = children.split()[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        os.kill(int(self._init), signal.SIGKILL)
        await self._unshare.wait()

    def _argv(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        enter = ["nsenter", "--target", self._init, "--mount", "--pid", "--setgid", UID, "--setuid", UID]
        settings = {"PATH": os.defpath, "HOME": "/tmp", "LANG": "C.UTF-8", **env}
        return [*enter, "env", "-i", *(f"{key}={value}" for key, value in settings.items()), *argv]

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Duplex:
        transport, streams = await asyncio.get_running_loop().subprocess_exec(
            _Streams, *self._argv(argv, env), cwd=cwd or "/tmp", start_new_session=True
        )
        return LocalDuplex(transport, streams)

    async def exec(
        self, argv: Sequence[str], *, user: User = "agent", cwd: str | None = None, timeout_s: float = 60.0
    ) -> ExecResult:
        assert user == "agent"
        with anyio.fail_after(timeout_s):
            done = await anyio.run_process(self._argv(argv, {}), cwd=cwd, check=False)
        return ExecResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def processes(self) -> list[str]:
        """Command lines of the agent's processes inside, seen from outside."""
        inside = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns/pid").readlink() == inside and process.stat().st_uid == int(UID):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
            except OSError:
                continue
        return [line for line in found if line]
