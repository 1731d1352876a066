"""Control groups under `termloom`: memory with swap, processes and processor time, on version 1 and version 2.

`detect` finds what can be written on this machine and says in `notes` what cannot; an object without hierarchies is
valid and limits nothing. The engine uses the same code to clear what a dead owner left.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from typing import NamedTuple

PARENT = "termloom"
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_INIT_PROCESS = 1


class Limits(NamedTuple):
    memory_mb: int
    pids: int
    cpus: float


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode()
    finally:
        os.close(descriptor)


def _settings_v1(limits: Limits) -> list[tuple[str, str, str]]:
    memory = str(limits.memory_mb << 20)
    return [
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes", memory),
        ("pids", "pids.max", str(limits.pids + _INIT_PROCESS)),
        ("cpu", "cpu.cfs_period_us", str(_PERIOD_US)),
        ("cpu", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))),
    ]


def _settings_v2(limits: Limits) -> list[tuple[str, str, str]]:
    return [
        ("memory", "memory.max", str(limits.memory_mb << 20)),
        ("memory", "memory.swap.max", "0"),
        ("pids", "pids.max", str(limits.pids + _INIT_PROCESS)),
        ("cpu", "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"),
    ]


class Cgroups:
    """One group a sandbox, in one directory (version 2) or one a controller (version 1)."""

    def __init__(self, roots: dict[str, str], *, unified: bool, notes: tuple[str, ...] = ()) -> None:
        self.roots = roots
        """Directory of our parent group, by controller."""
        self.unified = unified
        self.notes = notes

    @classmethod
    def detect(cls, base: str = "/sys/fs/cgroup") -> Cgroups:
        unified = os.path.exists(f"{base}/cgroup.controllers")
        roots: dict[str, str] = {}
        notes: list[str] = []
        for controller in _CONTROLLERS:
            parent = f"{base}/{PARENT}" if unified else f"{base}/{controller}/{PARENT}"
            try:
                _prepare_parent(base, parent, controller, unified=unified)
                roots[controller] = parent
            except OSError as error:
                notes.append(f"no {controller} limit: {parent} cannot be used ({error.strerror})")
        return cls(roots, unified=unified, notes=tuple(notes))

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.roots

    def directories(self, name: str) -> list[str]:
        return [f"{root}/{name}" for root in dict.fromkeys(self.roots.values())]

    def names(self) -> set[str]:
        """Every group below our parent, whoever made it."""
        parents = dict.fromkeys(self.roots.values())
        return {entry.name for parent in parents for entry in os.scandir(parent) if entry.is_dir()}

    def create(self, name: str, limits: Limits) -> None:
        for directory in self.directories(name):
            os.mkdir(directory)
        for controller, file, value in (_settings_v2 if self.unified else _settings_v1)(limits):
            if controller in self.roots:
                self._set(f"{self.roots[controller]}/{name}/{file}", value)

    @staticmethod
    def _set(path: str, value: str) -> None:
        try:
            _write(path, value)
        except FileNotFoundError:
            if "swap" not in path and "memsw" not in path:  # kernels without swap accounting lack these two
                raise

    def join(self, name: str) -> None:
        """Move the calling process into the group."""
        for directory in self.directories(name):
            _write(f"{directory}/cgroup.procs", "0")

    def processes(self, name: str) -> set[int]:
        found: set[int] = set()
        for directory in self.directories(name):
            try:
                found.update(map(int, _read(f"{directory}/cgroup.procs").split()))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
        return found

    def oom_kills(self, name: str) -> int:
        if not self.limits_memory:
            return 0
        file = "memory.events" if self.unified else "memory.oom_control"
        try:
            words = _read(f"{self.roots['memory']}/{name}/{file}").split()
        except FileNotFoundError:
            return 0
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0

    def remove(self, name: str) -> None:
        """Remove an empty group. Idempotent. Raises: OSError (EBUSY) while a process is in it."""
        for directory in self.directories(name):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue

    def kill(self, name: str, *, timeout_s: float) -> None:
        """Kill everything in the group and wait until it is empty.

        Blocks. Raises: TimeoutError.
        """
        deadline = time.monotonic() + timeout_s
        while processes := self.processes(name):
            for pid in processes:
                _kill_and_wait(pid, deadline)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(processes)} of {name} do not end")


def _prepare_parent(base: str, parent: str, controller: str, *, unified: bool) -> None:
    if not unified and not os.path.isdir(os.path.dirname(parent)):
        raise FileNotFoundError(errno.ENOENT, "no such hierarchy")
    if unified:
        _delegate(base, controller)
    os.makedirs(parent, exist_ok=True)
    if unified:
        _delegate(parent, controller)
    if not os.access(parent, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable")


def _delegate(directory: str, controller: str) -> None:
    path = f"{directory}/cgroup.subtree_control"
    if controller not in _read(path).split():
        _write(path, f"+{controller}")


def _kill_and_wait(pid: int, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
