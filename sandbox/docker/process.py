"""One process in a running container: an exec with its streams attached.

Invariants:
- A process is started by a POSIX shell that writes its process id and then becomes the program. So the start is proved,
  an engine's error text is never taken for output, and the process can be killed although the API has no such call.
- Its end is the engine's record, never the end of the stream: a child may hold the streams open, a program may close
  them and run on. Whichever of stream, process and container ends first wakes the reader.
- Killing reaches what the process started: all that carry its mark in their environment, until none is left.
- Its helper tasks belong to the engine's task group and end with `aclose`.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import anyio
from anyio.abc import TaskStatus

from sandbox.docker.client import CALL_S, ENGINE, answering, drop, end_input
from sandbox.docker.config import process_env, shell, user_id
from sandbox.docker.container import Container
from sandbox.engine import User
from sandbox.errors import EngineFault, SandboxError, SandboxLost

_MARK = "TERMLOOM_EXEC"
_LINGER_S = 1.0
"""How long output may still arrive after the engine has recorded the end."""
_CLOSE_S = 10.0
_CHUNK = 64 * 1024
_KILLED = 137

_START = 'printf "%s\\n" "$$"; cd -- "$1" || exit 126; shift; exec "$@"'
"""Arguments: directory, program and its arguments."""

_KILL = r"""
find_left() {
  left=
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/} state= text=
    [ "$pid" = "$$" ] && continue
    while IFS= read -r line; do case $line in State:*) state=$line; break ;; esac; done <"$dir/status" || continue
    case $state in ''|*Z*|*X*) continue ;; esac
    if [ "$pid" != "$1" ]; then
      while IFS= read -r line || [ -n "$line" ]; do text=$text$line; done <"$dir/environ" || continue
      case $text in *"$2"*) ;; *) continue ;; esac
    fi
    left="$left $pid"
  done
}
round=0
while [ $round -lt 200 ]; do
  find_left "$1" "$2" 2>/dev/null
  [ -z "$left" ] && echo gone && exit 0
  kill -KILL $left 2>/dev/null
  round=$((round + 1))
done
exit 1
"""
"""Arguments: process id, mark. Builtins alone and no fork (none may be left). Says `gone` when nothing is left: the
engine may record the script's exit only seconds later, behind that of a process whose streams are still held."""
_GONE = b"gone\n"

Chunk = tuple[Literal["out", "err"], bytes]


class ContainerProcess:
    """A started process; `send`, `receive` and `aclose` are those of `sandbox.transport.Duplex`."""

    def __init__(self, container: Container, exec_id: str, stream: Any, user: User, mark: str) -> None:
        self._container, self._exec_id, self._stream = container, exec_id, stream
        self._user: User = user
        self._mark = mark
        self._pid = ""
        self._pending: deque[Chunk] = deque()
        self._closing, self._feeding = anyio.CancelScope(), anyio.CancelScope()
        self._closed = False
        self.exit_code: int | None = None
        """Known once `receive` has given None."""

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.write_in(data)
        except (AssertionError, AttributeError, RuntimeError, OSError) as error:  # aiodocker's ways to say "closed"
            raise SandboxLost(self._container.sandbox_id, "the process has ended") from error

    async def receive(self) -> Chunk | None:
        chunk = self._pending.popleft() if self._pending else await self._read()
        if chunk is None:
            if self.exit_code is None:
                self.exit_code = await self._await_end()
            return None
        name, data = chunk
        if len(data) > _CHUNK:
            self._pending.appendleft((name, data[_CHUNK:]))
        return name, data[:_CHUNK]

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                if self.exit_code is None:
                    end_input(self._stream)  # who only waits for input ends by itself, and lets go of the streams
                    await self.kill()
            except SandboxError:
                pass  # a container that does not answer ends with its removal or at its lifetime
            finally:
                await self._let_go()

    async def kill(self) -> None:
        """Kill it and what it started. Raises: EngineFault when some of it outlived that; SandboxLost."""
        argv = [*shell(self._container.spec.profile), "-c", _KILL, "sh", self._pid, self._mark]
        with anyio.move_on_after(_CLOSE_S):
            killer = await start_process(self._container, argv, user=self._user, cwd="/")
            try:
                said = b""
                while said != _GONE and (chunk := await killer.receive()) is not None:
                    said += chunk[1]
                if said == _GONE:
                    return
            finally:
                await killer.release()
        raise EngineFault(ENGINE, "killing a process", "it did not end")

    async def release(self) -> None:
        """Let go of the stream without killing."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._let_go()

    async def _let_go(self) -> None:
        self._closing.cancel()
        self._feeding.cancel()
        await drop(self._stream)

    def feed(self, data: bytes) -> None:
        """Write `data` and close the standard input, beside the reading. A program need not read it."""
        self._container.tasks.start_soon(self._feed, data)

    async def _feed(self, data: bytes) -> None:
        with self._feeding:
            try:
                await self.send(data)
                end_input(self._stream)
            except SandboxLost:
                pass  # ended before it has read all

    async def _read(self) -> Chunk | None:
        try:
            with answering("reading output", math.inf, sandbox_id=self._container.sandbox_id):
                message = await self._stream.read_out()
        except SandboxLost as fault:
            raise await self._container.lost() from fault
        if message is None:
            return None
        return ("err" if message.stream == 2 else "out"), message.data

    async def _record(self) -> Mapping[str, Any]:
        try:
            with answering("inspecting a process", CALL_S, sandbox_id=self._container.sandbox_id):
                record: Mapping[str, Any] = await self._container.client.ask("GET", f"exec/{self._exec_id}/json")
        except SandboxLost as fault:
            raise await self._container.lost() from fault
        return record

    async def _await_end(self) -> int:
        """The exit code, once the engine has it. Raises: SandboxLost when it was the sandbox that ended."""
        container = self._container
        while True:
            with container.watch.ending(self._exec_id, container.key) as ended:
                record = await self._record()
                if not record["Running"]:
                    break
                if not await container.running():
                    raise await container.lost()
                await ended.wait()
        if record["ExitCode"] == _KILLED:
            await prove_alive(container)
        return int(record["ExitCode"])

    async def _open(self) -> None:
        """Attach, and read the process id."""
        await self._container.tasks.start(self._close_after_end)
        head = {"out": b"", "err": b""}
        with answering("starting a process", CALL_S):
            while b"\n" not in head["out"] and (chunk := await self._read()) is not None:
                head[chunk[0]] += chunk[1]
        pid, _, rest = head["out"].partition(b"\n")
        if not pid.isdigit():
            raise await self._not_started(head["out"] + head["err"])
        self._pid = pid.decode()
        early: tuple[Chunk, ...] = (("out", rest), ("err", head["err"]))
        self._pending.extend(chunk for chunk in early if chunk[1])

    async def _not_started(self, text: bytes) -> SandboxError:
        if await self._container.ends():
            return await self._container.lost()
        return EngineFault(ENGINE, "starting a process", text.decode(errors="replace").strip() or "no answer")

    async def _close_after_end(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """End the reading when the process or the container has ended, though something holds the stream open."""
        watch, keys = self._container.watch, (self._exec_id, self._container.key)
        try:
            with self._closing:
                with watch.ending(*keys) as woken:
                    task_status.started()
                    await woken.wait()
                while True:
                    with watch.ending(*keys) as woken:
                        if not await self._goes_on():
                            break
                        await woken.wait()
                await anyio.sleep(_LINGER_S)
        finally:
            with anyio.CancelScope(shield=True):
                await drop(self._stream)

    async def _goes_on(self) -> bool:
        try:
            return bool((await self._record())["Running"]) and await self._container.running()
        except SandboxError:
            return False


async def start_process(
    container: Container,
    argv: Sequence[str],
    *,
    user: User,
    cwd: str,
    env: Mapping[str, str] | None = None,
    stdin: bool = False,
    marked: bool = False,
) -> ContainerProcess:
    """Start a process. `marked` puts its mark into its environment, so that `kill` finds its descendants as well.

    Raises: SandboxLost, EngineFault.
    """
    mark = secrets.token_hex(16)
    config = {
        "Cmd": [*shell(container.spec.profile), "-c", _START, "sh", cwd, *argv],
        "User": user_id(user),
        "Env": process_env(container.spec, container.image, user, {**(env or {}), **({_MARK: mark} if marked else {})}),
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
    }
    try:
        with answering("starting a process", CALL_S, sandbox_id=container.sandbox_id):
            created = await container.client.ask("POST", f"{container.path}/exec", data=config)
    except SandboxLost as fault:
        raise await container.lost() from fault
    process = ContainerProcess(container, created["Id"], container.client.attach(created["Id"]), user, mark)
    try:
        with anyio.CancelScope(shield=marked):  # what has a mark is started to the end: its caller can then kill it
            await process._open()
    except BaseException:
        await process.release()
        raise
    return process


async def prove_alive(container: Container) -> None:
    """Raises: SandboxLost when nothing can be started in the container any more."""
    argv = [*shell(container.spec.profile), "-c", ":"]
    process = await start_process(container, argv, user="root", cwd="/")
    await process.release()
