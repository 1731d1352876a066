"""Which process owns something that outlives it: `<boot id>:<pid>:<start ticks>`.

A process id alone comes back; together with its start time and the boot it names one process for ever.
"""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """The owner string of the running process."""
    return f"{_boot()}:{os.getpid()}:{_start_ticks(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether the process that `owner` names still runs."""
    boot, pid, ticks = owner.split(":")
    return boot == _boot() and _start_ticks(int(pid)) == ticks


def _boot() -> str:
    return _BOOT_ID.read_text().strip()


def _start_ticks(pid: int) -> str:
    """Field 22 of the process's stat line; empty when there is no such process or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    return "" if fields[0] in "ZX" else fields[19]
