"""Which process owns something that outlives it: `<boot id>.<pid namespace>:<pid>:<start ticks>`.

A process id alone comes back; together with its start time, its boot and its process-id namespace it names one process
for ever. Of a process elsewhere nothing is known: it is neither alive nor dead.
"""

from __future__ import annotations

import os
from pathlib import Path

_START_TICKS = 19


def owner_token() -> str:
    """This process."""
    pid = os.getpid()
    return f"{_here()}:{pid}:{_start_ticks(pid)}"


def owner_is_alive(token: str) -> bool:
    """Whether the process that a token names is known to run."""
    here, pid, ticks = _parts(token)
    return here == _here() and pid.isdigit() and _start_ticks(int(pid)) == ticks


def owner_is_dead(token: str) -> bool:
    """Whether the process that a token names is known to be gone."""
    here, pid, ticks = _parts(token)
    return here == _here() and pid.isdigit() and _start_ticks(int(pid)) != ticks


def boot_id() -> str:
    """What changes when the machine starts anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _here() -> str:
    return f"{boot_id()}.{Path('/proc/self/ns/pid').stat().st_ino}"


def _parts(token: str) -> tuple[str, str, str]:
    here, _, rest = token.partition(":")
    pid, _, ticks = rest.partition(":")
    return here, pid, ticks


def _start_ticks(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[_START_TICKS].decode()
