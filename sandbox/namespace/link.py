"""The engine's end of the line to its spawner (`sandbox.namespace.zygote`).

Event-driven and without a task of its own: the event loop calls `_on_readable`, which answers whoever waits. Each
request has an id and a deadline. When the spawner is gone, every waiter and every process is told at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from sandbox.errors import EngineFault, EngineUnavailable, TransferRefused
from sandbox.namespace.zygote import wire

ENGINE = "namespace"
DEADLINE_S = 60.0
"""For one answer. Generous: a loaded machine is slow, only a hung one is silent this long."""
_BOOTSTRAP = "import sys; sys.path.append(sys.argv[1]); from zygote.{module} import main; main()"
_LOG_BYTES = 2000


def spawner_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `main` of one module of the spawner package."""
    home = str(Path(__file__).parent)
    bootstrap = _BOOTSTRAP.format(module=module)
    return [sys.executable, "-I", "-S", "-E", "-X", "utf8", "-c", bootstrap, home, *arguments]


class GoneError(Exception):
    """The spawner says that the sandbox does not run. Internal: becomes SandboxLost, which knows the reason."""


class ProcessWatcher(Protocol):
    """Who is told how a process ended."""

    def on_exit(self, status: int, *, lost: bool) -> None: ...


class _Waiter:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: wire.Message = {}


class Link:
    """One spawner process. `aclose` ends it, and with it every sandbox."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes], log: int) -> None:
        self._sock, self._process, self._log = sock, process, log
        self._waiters: dict[int, _Waiter] = {}
        self._watchers: dict[int, ProcessWatcher] = {}
        self._last_id = 0
        self._sending = anyio.Lock()
        """Held while one packet is sent: only one task may wait for room in the socket."""
        self._ready = _Waiter()
        self.closed = False
        self.notes: tuple[str, ...] = ()
        """Limits that this machine does not allow to set."""
        self.on_down: Callable[[str, str], None] = lambda _sandbox, _why: None
        """Called with id and reason when a sandbox ends by itself."""
        self.on_gone: Callable[[str], None] = lambda _why: None
        """Called with the reason when the spawner is gone."""

    @classmethod
    async def open(cls, place: Path) -> Link:
        """Start a spawner that mounts on the empty directory `place`. Raises: EngineUnavailable."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.memfd_create("spawner-log")
        with theirs:
            command = spawner_command("server", str(theirs.fileno()), str(place))
            process = await anyio.to_thread.run_sync(_start, command, theirs.fileno(), log)
        wire.prepare(ours)
        ours.setblocking(False)
        link = cls(ours, process, log)
        asyncio.get_running_loop().add_reader(ours, link._on_readable)
        try:
            with anyio.fail_after(DEADLINE_S):
                await link._ready.answered.wait()
        except BaseException:
            await link.aclose()
            raise
        if link.closed:
            reason = link._log_tail()
            await link.aclose()
            raise EngineUnavailable(ENGINE, reason, "Use the Docker engine, or run as root on a Linux host.")
        link.notes = tuple(link._ready.answer["notes"])
        return link

    async def request(
        self,
        operation: str,
        fields: wire.Message,
        descriptors: Sequence[int] = (),
        *,
        watcher: ProcessWatcher | None = None,
    ) -> wire.Message:
        """Ask and wait for the answer.

        A `watcher` is told the end of the process that this request starts; when no process comes of it, not at all.
        Leaving by time-out or cancellation while a process may be starting kills it.
        Raises: EngineFault, GoneError, TransferRefused.
        """
        number = self._last_id = self._last_id + 1
        waiter = self._waiters[number] = _Waiter()
        if watcher is not None:
            self._watchers[number] = watcher
        started = False
        try:
            with anyio.fail_after(DEADLINE_S):
                await self._send({"id": number, "op": operation, **fields}, descriptors)
                await waiter.answered.wait()
            started = _check(operation, waiter.answer)
        except TimeoutError:
            raise EngineFault(ENGINE, operation, f"no answer within {DEADLINE_S:g} s") from None
        finally:
            del self._waiters[number]
            if not started and self._watchers.pop(number, None) is not None:
                await self._send_kill(number)
        return waiter.answer | {"id": number}

    async def kill(self, run: int) -> None:
        """Kill the process started by request `run`, with all of its session. Raises: EngineFault."""
        await self.request("kill", {"run": run})

    async def _send_kill(self, run: int) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(DEADLINE_S):
            if not self.closed:
                await self.request("kill", {"run": run})

    async def _send(self, message: wire.Message, descriptors: Sequence[int]) -> None:
        async with self._sending:
            while not self.closed:
                try:
                    wire.send(self._sock, message, descriptors)
                except BlockingIOError:
                    await anyio.wait_writable(self._sock)
                except (OSError, ValueError) as error:
                    raise EngineFault(ENGINE, message["op"], str(error)) from error
                else:
                    return
        raise EngineFault(ENGINE, message["op"], "the spawner is gone")

    def _on_readable(self) -> None:
        while True:
            try:
                packet = wire.receive(self._sock)
            except BlockingIOError:
                return
            if packet is None:
                self._on_end()
                return
            self._dispatch(packet[0])

    def _dispatch(self, message: wire.Message) -> None:
        if "re" in message:
            _answer(self._waiters.get(message["re"]), message)
        elif "exit" in message:
            watcher = self._watchers.pop(message["exit"], None)
            if watcher is not None:
                watcher.on_exit(message["status"], lost=message["lost"])
        elif "down" in message:
            self.on_down(message["down"], message["why"])
        elif "ready" in message:
            _answer(self._ready, message)

    def _on_end(self) -> None:
        """The spawner closed its end: it is dead, and so is all that it started."""
        asyncio.get_running_loop().remove_reader(self._sock)
        self._tell_everyone(f"the spawner is gone: {self._log_tail()}")

    def _tell_everyone(self, why: str) -> None:
        self.closed = True
        self.on_gone(why)
        for watcher in self._watchers.values():
            watcher.on_exit(-1, lost=True)
        self._watchers.clear()
        for waiter in (*self._waiters.values(), self._ready):
            _answer(waiter, {"fault": why, "lost": False})

    def _log_tail(self) -> str:
        size = os.fstat(self._log).st_size
        tail = os.pread(self._log, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode("utf-8", "replace")
        return tail.strip() or "it left no message"

    async def aclose(self) -> None:
        """End the spawner, which first clears every sandbox, and wait for its end. Idempotent."""
        if self._log < 0:
            return
        asyncio.get_running_loop().remove_reader(self._sock)
        self._tell_everyone("the engine is closed")
        self._sock.close()
        with anyio.CancelScope(shield=True):
            await _wait_for_end(self._process)
        os.close(self._log)
        self._log = -1


def _start(command: list[str], sock: int, log: int) -> subprocess.Popen[bytes]:
    """A session of its own keeps the terminal's signals away; no environment, no inherited descriptor."""
    return subprocess.Popen(
        command,
        pass_fds=[sock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env={},
        cwd="/",
        start_new_session=True,
    )


async def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    ended = os.pidfd_open(process.pid)
    try:
        with anyio.move_on_after(DEADLINE_S):
            await anyio.wait_readable(ended)
        process.kill()
        await anyio.wait_readable(ended)
        process.wait()
    finally:
        os.close(ended)


def _answer(waiter: _Waiter | None, message: wire.Message) -> None:
    if waiter is not None:
        waiter.answer = message
        waiter.answered.set()


def _check(operation: str, answer: wire.Message) -> bool:
    if "refused" in answer:
        raise TransferRefused(*answer["refused"])
    if "fault" in answer:
        if answer["lost"]:
            raise GoneError(answer["fault"])
        raise EngineFault(ENGINE, operation, answer["fault"])
    return True
