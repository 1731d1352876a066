"""The seams of the sandbox layer: Engine, Sandbox, Session.

Invariants that every engine keeps (the conformance suite in `sandbox.conformance` holds them to it):
- A resource is recorded (label or lease file) before it exists, so that no crash can hide it from the reaper.
- `freeze` first proves every process in the sandbox dead, then gives an image: the frozen file system.
- `remove` is idempotent and confirmed; a sandbox also ends by itself at `Limits.lifetime_s`.
- Every wait has a deadline; an engine that does not answer raises `EngineFault`, a dead sandbox `SandboxLost`.
- Nothing on the host follows a path that a sandbox wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from sandbox.spec import BuildContext, BuildResult, CommandResult, ExecResult, File, SandboxRecord, SandboxSpec

User = Literal["agent", "root"]


class Session(Protocol):
    """A persistent bash: directory, variables, functions and background jobs survive from command to command.

    The command is data, its end is marked by a fresh nonce on a channel that its output can neither forge nor swallow,
    its standard input is empty unless given, its output is bounded (head and tail kept). One command at a time.
    """

    async def run(self, command: str, *, timeout_s: float = 10.0, stdin: bytes | None = None) -> CommandResult:
        """Run `command` and wait for its end.

        On time-out the command's processes are stopped inside the sandbox and proved gone; the shell's state is kept
        where it can be, else a new shell is started and the result says `shell_restarted`.

        Raises: SandboxLost, EngineFault; ValueError when the command holds a NUL byte.
        """
        ...

    async def aclose(self) -> None:
        """End the shell. Idempotent."""
        ...


class Sandbox(Protocol):
    """One started sandbox. Use as an async context manager: leaving it removes the sandbox, shielded and bounded."""

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> SandboxSpec: ...

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
        """Run one process to its end, outside any session. On time-out it is killed.

        Raises: SandboxLost, EngineFault.
        """
        ...

    async def open_session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, output_limit: int = 64 * 1024
    ) -> Session:
        """Start a persistent shell as the agent user; `cwd` defaults to the image's WORKDIR, else the agent's home."""
        ...

    async def put(self, files: Sequence[File]) -> None:
        """Place files (absolute paths), creating parents. Raises: TransferRefused, SandboxLost, EngineFault."""
        ...

    async def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """Content of one regular file; None when there is none (or it is no regular file).

        Raises: TransferRefused when larger than `max_bytes`; SandboxLost, EngineFault.
        """
        ...

    async def freeze(self) -> str:
        """Kill every process, prove it, and return the file system as an image id. The sandbox cannot run again."""
        ...

    async def remove(self) -> None:
        """Remove the sandbox. Idempotent; images made by `freeze` stay until `Engine.remove_image`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """Starts sandboxes. Use as an async context manager, from one event loop."""

    @property
    def name(self) -> str: ...

    async def build(self, context: BuildContext) -> BuildResult:
        """Build an image, or find it by content hash. Concurrent equal builds are one build.

        A failing step is a `BuildResult`, not an exception. Raises: BuildUnsupported, EngineFault.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox. A cancelled create leaves nothing behind.

        Raises: ImageMissing when the image was removed, by whichever process; EngineFault.
        """
        ...

    async def inventory(self) -> list[SandboxRecord]:
        """Every sandbox of ours that this engine holds, whoever started it."""
        ...

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox by id (reaper, `gc`). Idempotent."""
        ...

    async def remove_image(self, image: str) -> None:
        """Forget an image made by `build` or `freeze`. Idempotent; the base image is never removed by this.

        A built image is shared by all that use the same Docker daemon or state directory: while a sandbox of any of
        them stands on it, it stays. Raises: EngineFault, also where the engine says so of an image that stays.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...
