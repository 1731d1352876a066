"""The commands `serve` and `work`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from runtime.options import Common


async def serve(
    *,
    host: str | None = None,
    port: int | None = None,
    socket: Path | None = None,
    bus: str | None = None,
    sandbox: Literal["auto", "docker", "namespace"] | None = None,
    common: Common = Common(),
) -> int:
    """Serve: take jobs, survive restarts, show what goes on.

    Args:
        host: Where it listens; anything but loopback needs a token (daemon.token).
        port: 0 takes any free one.
        socket: A Unix socket instead of a port.
        bus: nats://HOST:PORT, for other machines to take part with `termloom work`.
        sandbox: Which engine runs the containers.
    """
    given: dict[str, object] = {
        "daemon.host": host,
        "daemon.port": port,
        "daemon.socket": None if socket is None else socket.absolute(),
        "daemon.bus": bus,
        "sandbox.engine": sandbox,
    }
    settings = common.settings(options=given)
    if common.dry_run:
        return common.show(settings)
    from runtime.daemon.server import run_daemon

    await run_daemon(settings, say=_say)
    return 0


async def work(
    *,
    bus: str | None = None,
    sandbox: Literal["auto", "docker", "namespace"] | None = None,
    common: Common = Common(),
) -> int:
    """Work for a daemon on another machine: this one's engine, this one's limits.

    Args:
        bus: nats://HOST:PORT, as the daemon was given it.
        sandbox: Which engine runs the containers.
    """
    settings = common.settings(options={"daemon.bus": bus, "sandbox.engine": sandbox})
    if common.dry_run:
        return common.show(settings)
    from runtime.daemon.join import join_daemon

    await join_daemon(settings, say=_say)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"termloom: {line}\n")
    sys.stderr.flush()
