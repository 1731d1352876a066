"""The persistent shell session: the same code on every engine, over `ShellHost.spawn` and `Sandbox.exec`.

`ShellSession` gives commands to one shell (`sandbox.shell`), stops what overstays and replaces a shell that ended.

Invariants:
- After `run` returns, the shell is in step: waiting for the next command, or new, and then the result says
  `shell_restarted`.
- After a time-out, none of the processes that the command started is left and nothing of it runs on; processes of
  earlier commands live on.
- A `run` that was cancelled, or that failed, leaves its command unfinished; the next use, `aclose` too, first stops it.
- A new shell starts where the last command that ended left the old one, else where the session began, else in `/`.
  Variables, functions and aliases are gone; background processes of the old shell live on.

Between two commands nobody reads: a background process that prints more than its pipe holds waits for the next command.
One session a sandbox: a time-out stops every process of the agent that started after the command began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import anyio

from sandbox.engine import User
from sandbox.errors import EngineFault, SandboxLost
from sandbox.shell import Command, Shell
from sandbox.shell_driver import killer_argv
from sandbox.spec import CommandResult, ExecResult
from sandbox.transport import ShellHost

_TERM_GRACE_S = 0.5
"""How long a process may take to end by itself after SIGTERM."""
_STAMP_S = 1.0
"""How long the stamp of a command that was given up early may be on its way."""
_STEP_S = 2.0
"""How long the shell may take to give up a command once the processes of that command are gone."""
_KILL_EXEC_S = 10.0
_KILL_ATTEMPTS = 5
_KILL_PAUSE_S = 0.2
"""Between attempts to end everything: at the process limit even the engine may be refused a process for a while."""


class SessionHost(ShellHost, Protocol):
    """What a session needs of a sandbox."""

    @property
    def id(self) -> str: ...

    async def exec(
        self, argv: Sequence[str], *, user: User = "agent", cwd: str | None = None, timeout_s: float = 60.0
    ) -> ExecResult: ...


class ShellSession:
    """See `sandbox.engine.Session`."""

    def __init__(self, host: SessionHost, shell: Shell, *, env: Mapping[str, str], output_limit: int) -> None:
        self._host, self._env, self._output_limit = host, dict(env), output_limit
        self._shell: Shell | None = shell
        self._home = self._directory = shell.directory
        self._unfinished: Command | None = None
        self._busy = self._closed = False

    @classmethod
    async def open(
        cls, host: SessionHost, *, cwd: str | None, env: Mapping[str, str] | None, output_limit: int
    ) -> ShellSession:
        """Start a shell in `cwd`; None is the image's WORKDIR, else the agent's home.

        Raises: SandboxLost; EngineFault when it does not start or cannot enter `cwd`.
        """
        shell = await Shell.start(host, env or {}, [cwd] if cwd else [])
        return cls(host, shell, env=env or {}, output_limit=output_limit)

    async def run(self, command: str, *, timeout_s: float = 10.0, stdin: bytes | None = None) -> CommandResult:
        """See `sandbox.engine.Session.run`. `stdin` may hold any byte and should be small: it travels with the command.

        Raises: SandboxLost, EngineFault; ValueError when the command holds a NUL byte; RuntimeError when the session is
        closed or another command is running.
        """
        if "\0" in command:
            raise ValueError("a command cannot hold a NUL byte")
        if self._busy or self._closed:
            raise RuntimeError("the session is closed" if self._closed else "a command is running in this session")
        self._busy = True
        try:
            return await self._run(command.encode("utf-8", "surrogateescape"), timeout_s, stdin)
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """End the shell. What an unfinished command left is stopped first. Idempotent."""
        self._closed = True
        shell, self._shell = self._shell, None
        if shell is None:
            return
        if self._unfinished is None:
            await shell.leave()
            return
        with anyio.CancelScope(shield=True):
            try:
                with contextlib.suppress(SandboxLost):  # and the processes with it
                    await self._await_stamp(shell, self._unfinished)
                    await self._kill("shell", shell, self._unfinished)
            finally:
                await shell.aclose()

    async def _run(self, text: bytes, timeout_s: float, stdin: bytes | None) -> CommandResult:
        restarted = await self._ready()
        command = await self._converse(text, timeout_s, stdin)
        if command.skipped:
            restarted = await self._ready()
            command = await self._converse(text, timeout_s, stdin)
        return CommandResult(
            output=command.output.text(),
            exit_code=command.exit_code,
            timed_out=not (command.reported or command.exited or command.window.ended),
            total_bytes=command.output.total_bytes,
            dropped_bytes=command.output.dropped_bytes,
            duration_s=command.duration_s,
            shell_restarted=await self._ready() or restarted,
        )

    async def _converse(self, text: bytes, timeout_s: float, stdin: bytes | None) -> Command:
        assert self._shell is not None
        command = self._unfinished = self._shell.new_command(self._output_limit)
        await self._shell.converse(command, text, timeout_s, stdin)
        return command

    async def _ready(self) -> bool:
        """Bring the shell in step, or start a new one; whether it is new. Raises: SandboxLost, EngineFault."""
        command, shell = self._unfinished, self._shell
        if command is not None and shell is not None and not await self._back_in_step(command, shell):
            await self._end(command, shell)
            self._shell = None
        self._unfinished = None
        if self._shell is not None:
            self._directory = self._shell.directory
            return False
        self._shell = await Shell.start(self._host, self._env, [self._directory, self._home, "/"])
        return True

    async def _back_in_step(self, command: Command, shell: Shell) -> bool:
        """Whether the shell waits for the next command, after it was made to give up this one if it had not ended."""
        if command.in_step:
            return True
        await self._await_stamp(shell, command)
        if command.reported or command.exited or not command.stamped:
            return False
        await self._kill("interrupt", shell, command)
        with anyio.move_on_after(_TERM_GRACE_S):
            await shell.follow(command)
        if not await self._kill("kill", shell, command):
            return False
        with anyio.move_on_after(_STEP_S):
            await shell.follow(command)
        return command.in_step

    async def _await_stamp(self, shell: Shell, command: Command) -> None:
        """A command that was given up before its stamp was read runs all the same. Raises: SandboxLost."""
        with anyio.move_on_after(_STAMP_S), contextlib.suppress(EngineFault):
            await shell.await_stamp(command)

    async def _end(self, command: Command, shell: Shell) -> None:
        """End a shell that is out of step, and what is left of its command."""
        self._directory = shell.directory
        await shell.aclose()
        if command.exited and command.exit_code is not None:
            return  # it left by itself, as a person leaves a shell: what it started may live on
        if await self._kill("shell", shell, command):
            return
        for _ in range(_KILL_ATTEMPTS):
            if await self._kill("everything", shell, command):
                return
            await anyio.sleep(_KILL_PAUSE_S)
        raise SandboxLost(self._host.id, "the processes of a command could not be stopped")

    async def _kill(self, mode: str, shell: Shell, command: Command) -> bool:
        """Whether the killer did its work. Raises: SandboxLost."""
        argv = killer_argv(mode, shell=shell.pid, since=command.since, last=command.last_pid)
        try:
            result = await self._host.exec(argv, cwd="/", timeout_s=_KILL_EXEC_S)
        except EngineFault:
            return False
        return result.exit_code == 0
