"""What a drill must not leave: processes, sandboxes, control groups, mounts.

While a drill runs, the test process adopts what its children leave behind, so that a process which outlives the one
that started it is still a descendant of the test, and is found.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandbox.namespace.zygote.cgroups import Cgroups

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 30.0
_SPARE = 8
"""Connections to an engine that are kept for the next request."""


class Remains:
    """What has been seen of the sandboxes under the state directories of one drill."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sandboxes: set[str] = set()

    def leases(self) -> set[str]:
        return {path.stem for path in self._root.glob("*/sandboxes/*.json")}

    def look(self) -> None:
        """Remember the sandboxes there are: a process that was to remove them has just been killed."""
        self._sandboxes |= self.leases()

    def check(self) -> None:
        assert self.leases() == set(), "leases of sandboxes are left"
        assert Cgroups.detect().names() & self._sandboxes == set(), "control groups of sandboxes are left"
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self._root) in line]
        assert mounts == [], "mounts are left"


@contextmanager
def nothing_left(root: Path) -> Iterator[Remains]:
    """Around a drill whose processes keep their state below `root`; they have been told to end when this ends."""
    before, libc = descendants(os.getpid()), ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        remains = Remains(root)
        yield remains
        _await_ends(before)
        remains.check()
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Around the work of a process that lives on.

    Some connections may be kept for the next request. Work that the bus handed out twice may still be under way
    for the second time when its job has ended: it is waited for.
    """
    idle = _descriptors(pid)
    yield
    patience_ends = time.monotonic() + _PATIENCE_S
    while (left := _descriptors(pid) - idle) > _SPARE and time.monotonic() < patience_ends:
        time.sleep(0.1)
    assert left <= _SPARE, f"{left} descriptors more than before"


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def descendants(of: int) -> dict[int, str]:
    """Process ids and names below a process."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            pid = int(stat.parent.name)
            parents[pid], names[pid] = int(rest.split()[1]), head.partition("(")[2]
    found: dict[int, str] = {}
    level = {of}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found |= {pid: names[pid] for pid in level}
    return found


def _await_ends(before: dict[int, str]) -> None:
    """See every process end that came since, and bury what was adopted."""
    while left := {pid: name for pid, name in descendants(os.getpid()).items() if pid not in before}:
        for pid, name in left.items():
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                ended, _, _ = select.select([descriptor], [], [], _PATIENCE_S)
                os.close(descriptor)
                assert ended, f"process {pid} ({name}) is left"
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
