"""One running shell and the conversation with it: lines in, marks and records out.

`Shell` starts the process and follows commands on its two streams; what to do about a command that overstays, or about
a shell that ended, is the session's affair (`sandbox.session`).

Invariants:
- A command has ended when its record came on the control stream and its end mark on the output stream, or when the
  shell ended; never because a stream ended.
- Reading goes on while lines are sent, so that neither side can wait for the other.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio

from sandbox.bounded import BoundedOutput
from sandbox.errors import EngineFault, SandboxError, SandboxLost
from sandbox.shell_driver import LEAVING, command_lines, setup_lines, supervisor_argv
from sandbox.shell_marks import OutputWindow, RecordReader, mark, new_nonce
from sandbox.transport import Duplex, ShellHost

_START_S = 30.0
_LEAVE_S = 2.0
_MISSING_HALF_S = 2.0
"""How long the second of record and end mark may take after the first: they are written at the same time."""
_TICKS_PER_SECOND = 100
"""USER_HZ, the unit of start times in /proc: fixed by the kernel's interface on the architectures that matter."""
_NEVER = 1 << 62


@dataclass(kw_only=True)
class Command:
    """A command on its way through a shell."""

    output: BoundedOutput
    window: OutputWindow
    begin: str
    end: str
    since: int = _NEVER
    """Clock tick at which it began."""
    last_pid: int = 0
    """The newest process at that time."""
    exit_code: int | None = None
    reported: bool = False
    """Its record came: the shell has done with it."""
    exited: bool = False
    """The shell ended with it, or before it."""
    duration_s: float = 0.0

    @property
    def stamped(self) -> bool:
        """Whether it is known which processes are its own."""
        return self.since != _NEVER

    @property
    def skipped(self) -> bool:
        """Whether it never ran: the shell had died, or was no longer able to run a command."""
        return self.window.ended and not self.window.begun

    @property
    def in_step(self) -> bool:
        """Whether the shell waits for the next command, all output of this one read."""
        return self.reported and self.window.ended and not self.skipped


class Shell:
    """A shell process. `directory` and `status` are those after the last command that ended."""

    def __init__(self, duplex: Duplex, nonce: str) -> None:
        self._duplex, self._nonce = duplex, nonce
        self._records = RecordReader()
        self.pid = 0
        self.directory = "/"
        self.status = 0

    @classmethod
    async def start(cls, host: ShellHost, env: Mapping[str, str], directories: Sequence[str]) -> Shell:
        """Start a shell in the first of `directories` that can be entered; without any, where the engine starts it.

        Raises: SandboxLost; EngineFault when it does not start or can enter none.
        """
        nonce = new_nonce()
        shell = cls(await host.spawn(supervisor_argv(), env=env, cwd="/" if directories else ""), nonce)
        try:
            with anyio.fail_after(_START_S):
                await shell._duplex.send(setup_lines(nonce, directories))
                await shell._greeted(directories)
        except TimeoutError as error:
            await shell.aclose()
            raise EngineFault("session", "start", f"the shell gave no sign within {_START_S:.0f} s") from error
        except BaseException:
            await shell.aclose()
            raise
        return shell

    async def leave(self) -> None:
        """End a shell that is in step, as a person would, and close the streams."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_LEAVE_S), contextlib.suppress(SandboxError):
                await self._duplex.send(LEAVING)
                while await self._duplex.receive() is not None:
                    pass
            await self.aclose()

    async def aclose(self) -> None:
        """Kill the supervisor and close the streams; an idle shell then ends by itself."""
        with anyio.CancelScope(shield=True):
            await self._duplex.aclose()

    def new_command(self, output_limit: int) -> Command:
        begin, end = new_nonce(), new_nonce()
        window = OutputWindow(mark(begin), (mark(end), mark(self._nonce)))
        return Command(output=BoundedOutput(output_limit), window=window, begin=begin, end=end)

    async def converse(self, command: Command, text: bytes, timeout_s: float, stdin: bytes | None) -> None:
        """Send the command `text` and follow it to its end, `timeout_s` at most. Raises: SandboxLost, EngineFault."""
        lines = command_lines(text, begin=command.begin, end=command.end, status=self.status, stdin=stdin)
        started = time.monotonic()
        fault: SandboxError | None = None
        with anyio.move_on_after(timeout_s):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, lines)
                try:
                    await self.follow(command)
                except SandboxError as error:
                    fault = error
                tasks.cancel_scope.cancel()
        command.duration_s = time.monotonic() - started
        if fault is not None:
            raise fault

    async def await_stamp(self, command: Command) -> None:
        """Read until its processes are known, or it has ended. Raises: SandboxLost, EngineFault."""
        while not (command.stamped or command.reported or command.exited or command.window.ended):
            await self._read(command)

    async def follow(self, command: Command) -> None:
        """Read until the command has ended. Raises: SandboxLost, EngineFault."""
        while not (command.reported or command.exited or command.window.ended):
            await self._read(command)
        with anyio.move_on_after(_MISSING_HALF_S):
            while not command.window.ended or not (command.reported or command.exited):
                await self._read(command)

    async def _send(self, lines: bytes) -> None:
        with contextlib.suppress(SandboxLost):  # the reading side tells a shell that ended from a sandbox that did
            await self._duplex.send(lines)

    async def _read(self, command: Command) -> None:
        received = await self._duplex.receive()
        if received is None:
            command.exited = True
            command.window.close()
            return
        stream, chunk = received
        if stream == "out":
            command.output.feed(command.window.feed(chunk))
            return
        for nonce, kind, rest in self._records.feed(chunk):
            self._take(command, nonce, kind, rest)

    def _take(self, command: Command, nonce: str, kind: str, rest: str) -> None:
        if (nonce, kind) == (command.begin, "begin"):
            command.since, command.last_pid = _stamp(rest) or (_NEVER, 0)
        elif (nonce, kind) == (command.end, "end") and not command.reported:
            code, _, self.directory = rest.partition(" ")
            command.exit_code = self.status = int(code)
            command.reported = True
        elif (nonce, kind) == (self._nonce, "exit") and not command.reported:
            command.exit_code = int(rest)
            command.exited = True

    async def _greeted(self, directories: Sequence[str]) -> None:
        while True:
            received = await self._duplex.receive()
            if received is None:
                raise EngineFault("session", "start", "the shell ended at once")
            stream, chunk = received
            records = self._records.feed(chunk) if stream == "err" else []
            for nonce, kind, rest in records:
                if (nonce, kind) == (self._nonce, "hello"):
                    entered, pid, self.directory = rest.split(" ", 2)
                    self.pid = int(pid)
                    if entered != "0":
                        raise EngineFault("session", "start", f"no directory to start in among {list(directories)}")
                    return


def _stamp(rest: str) -> tuple[int, int] | None:
    """Clock tick and newest process id from the texts of /proc/uptime and /proc/loadavg; None when it is not they."""
    found = re.fullmatch(r"(\d+)\.(\d\d) \S+\s+(?:\S+ ){4}(\d+)\s*", rest)
    return (int(found[1]) * _TICKS_PER_SECOND + int(found[2]), int(found[3])) if found else None
