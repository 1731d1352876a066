"""What a daemon on this machine may still open: each session costs it descriptors, out of a limit of its own.

A daemon that has reached it answers every call with "too many open files", those that would remove a sandbox too.
"""

from __future__ import annotations

import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path

from sandbox.docker.client import engine_url
from sandbox.spec import Record

EACH_SESSION = 11
"""Held by the daemon: two for each stream of the first process and of the shell, and the shell's connection."""


class Descriptors(Record):
    """Of one process."""

    used: int
    limit: int


def daemon_descriptors(url: str | None = None) -> Descriptors | None:
    """Of the daemon that listens on a socket here; None where it is elsewhere, or not ours to look at."""
    scheme, _, path = engine_url(url).partition("://")
    with suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
        if scheme == "unix":
            peer.connect(path)
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, _, _ = struct.unpack("3i", credentials)
            if pid > 1:  # 1: the init listens for the daemon; 0: it lives in another namespace
                used = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                return Descriptors(used=used, limit=resource.prlimit(pid, resource.RLIMIT_NOFILE)[0])
    return None
