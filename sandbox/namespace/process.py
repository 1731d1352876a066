"""One process in a sandbox, as three pipes and an end.

Reads are driven by readiness: nothing runs while nobody waits, and a process whose output nobody reads is held up by
its own pipe. The end of the process, not the end of its streams, ends `receive`: a child left in the background may
hold them open, and fill them, for ever. What lies in the pipes at the end is read, and no more.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import anyio.lowlevel

from sandbox.errors import EngineFault, SandboxLost
from sandbox.namespace.link import DEADLINE_S, ENGINE, Link

Stream = Literal["out", "err"]
_CHUNK = 64 * 1024


class Pipes:
    """The engine's ends of standard input, output and error (non-blocking), and the process's ends while it starts."""

    def __init__(self) -> None:
        stdin, self.stdin = os.pipe2(os.O_CLOEXEC)
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        self.theirs = (stdin, stdout, stderr)
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)

    def close_ours(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


class Process:
    """A `Duplex` over a started process. One reader and one writer at a time."""

    def __init__(
        self,
        sandbox_id: str,
        link: Link,
        pipes: Pipes,
        why_lost: Callable[[], Awaitable[str]],
        on_release: Callable[[Process], None],
    ) -> None:
        self._sandbox_id, self._link, self._why_lost, self._on_release = sandbox_id, link, why_lost, on_release
        self._stdin: int | None = pipes.stdin
        self._streams: dict[int, Stream] = {pipes.stdout: "out", pipes.stderr: "err"}
        self._wake = anyio.Event()
        self._ended = anyio.Event()
        self._lost = False
        self._left: dict[int, int] = {}
        """Bytes in the pipes when it ended, less what was read since; of a process that runs nothing."""
        self.run = 0
        """Number of the request that started it."""
        self.status: int | None = None
        """Exit code; 128 + signal when killed; None while it runs."""

    def on_exit(self, status: int, *, lost: bool) -> None:
        self.status, self._lost = status, lost
        self._left = {descriptor: _unread(descriptor) for descriptor in self._streams}
        self._ended.set()
        self._wake.set()

    async def send(self, data: bytes) -> None:
        """Write all of `data` to its standard input. Raises: SandboxLost."""
        rest = memoryview(data)
        while rest:
            if self._stdin is None:
                raise SandboxLost(self._sandbox_id, "standard input of the process is closed")
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)
            except BrokenPipeError:
                await self._raise_if_lost()
                raise SandboxLost(self._sandbox_id, "the process has ended") from None

    def close_stdin(self) -> None:
        """End of file on its standard input. Idempotent."""
        if self._stdin is not None:
            anyio.notify_closing(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    async def receive(self) -> tuple[Stream, bytes] | None:
        """The next chunk; None once it has ended and what it wrote is read. Raises: SandboxLost."""
        await anyio.lowlevel.checkpoint()  # else who writes faster than we read keeps every deadline from its turn
        while True:
            ended = self.status is not None
            chunk = self._read_ready()
            if chunk is not None:
                return chunk
            if ended:
                await self._raise_if_lost()
                return None
            await self._wait()

    def _read_ready(self) -> tuple[Stream, bytes] | None:
        for descriptor, stream in tuple(self._streams.items()):
            left = self._left.get(descriptor, _CHUNK)
            if not left:
                continue
            try:
                data = os.read(descriptor, min(left, _CHUNK))
            except BlockingIOError:
                continue
            del self._streams[descriptor]
            if data:
                if descriptor in self._left:
                    self._left[descriptor] -= len(data)
                self._streams[descriptor] = stream  # behind the other one, so that neither starves
                return stream, data
            os.close(descriptor)
        return None

    async def _wait(self) -> None:
        """Until a stream is readable or the process ends."""
        loop = asyncio.get_running_loop()
        self._wake = anyio.Event()
        watched = tuple(self._streams)
        for descriptor in watched:
            loop.add_reader(descriptor, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            for descriptor in self._streams.keys() & watched:  # the others were released meanwhile
                loop.remove_reader(descriptor)

    async def _raise_if_lost(self) -> None:
        if self._lost:
            raise SandboxLost(self._sandbox_id, await self._why_lost())

    async def wait(self) -> int:
        """Its exit code, once it has ended. Raises: SandboxLost."""
        await self._ended.wait()
        await self._raise_if_lost()
        assert self.status is not None
        return self.status

    async def kill(self) -> None:
        """Kill it with all of its session, and see its end. Raises: EngineFault."""
        if self.status is None:
            await self._link.kill(self.run)
            try:
                with anyio.fail_after(DEADLINE_S):
                    await self._ended.wait()
            except TimeoutError:
                raise EngineFault(ENGINE, "kill", f"the process does not end within {DEADLINE_S:g} s") from None

    async def aclose(self) -> None:
        """Kill it if it runs, release its descriptors. Idempotent. Raises: EngineFault."""
        try:
            with anyio.CancelScope(shield=True):
                await self.kill()
        finally:
            self.release()

    def release(self) -> None:
        """Close its descriptors, whatever became of it. Idempotent."""
        loop = asyncio.get_running_loop()
        self.close_stdin()
        while self._streams:
            descriptor, _ = self._streams.popitem()
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._on_release(self)


def _unread(descriptor: int) -> int:
    """Bytes that lie in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
