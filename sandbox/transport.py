"""What an engine gives the shell session: one process with a byte stream in and two out.

The session (`sandbox.session`) is the same code on every engine: it needs `spawn` and `Sandbox.exec` and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol


class Duplex(Protocol):
    """A running process. Reads are event-driven: an idle one costs no CPU."""

    async def send(self, data: bytes) -> None:
        """Write to its standard input, all of it. Raises: SandboxLost when the process or sandbox is gone."""
        ...

    async def receive(self) -> tuple[Literal["out", "err"], bytes] | None:
        """The next chunk (at most 64 KiB) from its standard output or standard error; None once it has ended.

        Bytes of one stream keep their order; the two streams have none between them. Never blocks the event loop;
        not reading puts back-pressure on the process. Raises: SandboxLost when the sandbox itself is gone.
        """
        ...

    async def aclose(self) -> None:
        """Kill the process if it runs, release its descriptors. Idempotent."""
        ...


class ShellHost(Protocol):
    """The part of a sandbox that a session needs beside `exec`."""

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Duplex:
        """Start a process as the agent user; `cwd` "" is the image's WORKDIR, else the agent's home.

        Raises: SandboxLost, EngineFault.
        """
        ...
