"""One sandbox of the daemonless engine.

Its state goes one way: running, then ended (by itself, by `freeze`, or by `remove`), then removed. It counts as removed
only when the spawner has proved every process gone and the lease is deleted; until then `remove` can be called again.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from sandbox.engine import Session, User
from sandbox.errors import EngineFault, SandboxLost, TransferRefused
from sandbox.namespace.images import Image
from sandbox.namespace.link import ENGINE, GoneError, Link
from sandbox.namespace.parcel import Placed, pack
from sandbox.namespace.process import Pipes, Process
from sandbox.spec import TRUSTED_DIR, ExecResult, File, SandboxSpec

if TYPE_CHECKING:
    from sandbox.namespace.engine import NamespaceEngine

_FORBIDDEN = ("/proc", "/sys", "/dev", TRUSTED_DIR)
_REASON_DEADLINE_S = 10.0


class NamespaceSandbox:
    """A `Sandbox` and `ShellHost`. Made by `NamespaceEngine.create`."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, image: Image, engine: NamespaceEngine, link: Link) -> None:
        self._id, self._spec, self._image = sandbox_id, spec, image
        self._engine, self._link = engine, link
        self._gone = anyio.Event()
        self._why = ""
        self._removed = False
        self._ending = anyio.Lock()
        """Held while the sandbox is stopped, so that `freeze` and `remove` do not do it twice."""
        self._frozen = ""
        self._processes: set[Process] = set()
        """Those whose descriptors are open. Nobody need close a session of a sandbox that is gone."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    def on_down(self, why: str) -> None:
        """The engine's word that the sandbox has ended."""
        if not self._why:
            self._why = why
            self._gone.set()

    async def _reason(self) -> str:
        """Why it ended. The word may come a moment after the end of its processes."""
        with anyio.move_on_after(_REASON_DEADLINE_S):
            await self._gone.wait()
        return self._why or "its processes were killed"

    def _check(self) -> None:
        if self._why:
            raise SandboxLost(self._id, self._why)

    # Processes

    async def start(self, argv: Sequence[str], *, user: str, cwd: str, env: Mapping[str, str]) -> Process:
        """Start a process with pipes. `cwd` empty is the user's home. Raises: SandboxLost, EngineFault."""
        self._check()
        command = {"argv": list(argv), "env": dict(env), "cwd": cwd, "user": user}
        pipes = Pipes()
        process = Process(self._id, self._link, pipes, self._reason, self._processes.discard)
        try:
            fields = {"sandbox": self._id, "command": command}
            answer = await self._link.request("run", fields, pipes.theirs, watcher=process)
        except GoneError:
            pipes.close_ours()
            raise SandboxLost(self._id, await self._reason()) from None
        except BaseException:
            pipes.close_ours()
            raise
        finally:
            pipes.close_theirs()
        process.run = answer["id"]
        self._processes.add(process)
        return process

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Process:
        """Start a process as the agent user. Raises: SandboxLost, EngineFault."""
        return await self.start(argv, user="agent", cwd=cwd or self._image.config.workdir, env=self._environment(env))

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
        """Run one process to its end. `output_limit` holds for each stream. Raises: SandboxLost, EngineFault."""
        begun = time.monotonic()
        directory = cwd if cwd is not None else self._image.config.workdir
        process = await self.start(argv, user=user, cwd=directory, env=self._environment(env))
        output = Output(output_limit)
        try:
            with anyio.move_on_after(timeout_s) as scope:
                await output.gather(process, stdin)
            if scope.cancelled_caught:
                await process.kill()
                await output.rest(process)
        finally:
            await process.aclose()
        return ExecResult(
            exit_code=None if scope.cancelled_caught else process.status,
            stdout=bytes(output.streams["out"]),
            stderr=bytes(output.streams["err"]),
            timed_out=scope.cancelled_caught,
            truncated=output.truncated,
            duration_s=time.monotonic() - begun,
        )

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self._image.config.env, **self._spec.env, **(env or {})}

    async def open_session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, output_limit: int = 64 * 1024
    ) -> Session:
        """Start a persistent shell as the agent user. Raises: SandboxLost, EngineFault."""
        from sandbox.session import ShellSession

        return await ShellSession.open(self, cwd=cwd, env=env, output_limit=output_limit)

    # Files

    async def put(self, files: Sequence[File]) -> None:
        """Place files, creating parents. Raises: TransferRefused, SandboxLost, EngineFault."""
        for file in files:
            _check_path(file.path)
        await self.place([Placed.of(file) for file in files])

    async def place(self, placed: Sequence[Placed]) -> None:
        """`put` with directories, any owner, and targets that may turn out to be directories."""
        self._check()
        parcel = await anyio.to_thread.run_sync(pack, placed)
        try:
            await self._transfer("put", parcel, {})
        finally:
            os.close(parcel)

    async def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """Content of one regular file, or None. Raises: TransferRefused, SandboxLost, EngineFault."""
        if not path.startswith("/") or "\0" in path:
            raise TransferRefused(path, "the path is not absolute and plain")
        self._check()
        content = os.memfd_create("get")
        try:
            found = await self._transfer("get", content, {"path": path, "limit": max_bytes})
            return await anyio.to_thread.run_sync(_read_all, content) if found else None
        finally:
            os.close(content)

    async def _transfer(self, operation: str, content: int, fields: Mapping[str, object]) -> bool:
        try:
            answer = await self._link.request(operation, {"sandbox": self._id, **fields}, [content])
        except GoneError:
            raise SandboxLost(self._id, await self._reason()) from None
        return bool(answer["value"])

    # End

    async def freeze(self) -> str:
        """Kill every process, prove it, and give the file system as an image id. Raises: SandboxLost, EngineFault."""
        async with self._ending:
            if not self._frozen:
                self._check()
                await self._stop(keep=True, why="it was frozen")
                self._frozen = self._engine.images.frozen(self._id, self._image).id
                await self._engine.release(self._id)
            return self._frozen

    async def stop_for_commit(self) -> None:
        """Kill every process, prove it, and leave the upper layer where the builder put it."""
        async with self._ending:
            self._check()
            await self._stop(keep=True, why="its image is complete")

    async def _stop(self, *, keep: bool, why: str) -> None:
        self.on_down(why)
        try:
            await self._link.request("stop", {"sandbox": self._id, "keep": keep})
        except GoneError as error:
            raise EngineFault(ENGINE, "stop", str(error)) from error

    async def remove(self) -> None:
        """Remove the sandbox, shielded and bounded. Idempotent. Raises: EngineFault."""
        with anyio.CancelScope(shield=True):
            async with self._ending:
                if not self._removed:
                    await self._remove()
                    self._removed = True
                    for process in tuple(self._processes):
                        process.release()

    async def _remove(self) -> None:
        if self._link.closed:  # the spawner died: its sandboxes with it, their leases and control groups not
            await self._engine.clear(self._id)
            return
        if not self._frozen:
            await self._stop(keep=False, why="it was removed")
        await self._engine.release(self._id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.remove()


class Output:
    """Both output streams of a process, each kept up to a limit and read to its end all the same."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.streams = {"out": bytearray(), "err": bytearray()}
        self.truncated = False

    async def gather(self, process: Process, stdin: bytes) -> None:
        """Feed `stdin` and read until the process has ended. Raises: SandboxLost."""
        lost: SandboxLost | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process, stdin)
            try:
                await self.rest(process)
            except SandboxLost as error:  # bare to the caller, not in the task group's exception group
                lost = error
            tasks.cancel_scope.cancel()
        if lost is not None:
            raise lost

    async def rest(self, process: Process) -> None:
        while (chunk := await process.receive()) is not None:
            stream, data = chunk
            kept = self.streams[stream]
            room = self._limit - len(kept)
            kept += data[:room]
            self.truncated |= len(data) > room


async def _feed(process: Process, stdin: bytes) -> None:
    """A process that ends before it has read everything is no failure; its exit code says what became of it."""
    try:
        await process.send(stdin)
    except SandboxLost:
        return
    process.close_stdin()


def _read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _check_path(path: str) -> None:
    """Raises: TransferRefused."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise TransferRefused(path, "the path is not absolute and plain")
    plain = posixpath.normpath(path)
    if any(plain == place or plain.startswith(f"{place}/") for place in _FORBIDDEN):
        raise TransferRefused(path, "nothing can be placed there")
