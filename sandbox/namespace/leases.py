"""Lease files: one `SandboxRecord` as JSON for each sandbox, in `<state_dir>/sandboxes`.

A lease exists before its sandbox and goes after it, so whatever a crash leaves behind is named here. Files appear
atomically; they are not synced, since nothing that they name survives a restart of the machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from sandbox.spec import SandboxRecord

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TICKS = 19


def _start_ticks(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[_START_TICKS].decode()


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def own_identity() -> str:
    """This process, for `SandboxRecord.owner`: `<boot id>:<pid>:<start ticks>`."""
    return f"{boot_id()}:{os.getpid()}:{_start_ticks(os.getpid())}"


def is_alive(owner: str) -> bool:
    boot, pid, ticks = owner.split(":")
    return boot == boot_id() and _start_ticks(int(pid)) == ticks


class Leases:
    """The directory of lease files. All methods block briefly on the file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, sandbox_id: str) -> Path:
        return self._directory / f"{sandbox_id}.json"

    def write(self, record: SandboxRecord) -> None:
        path = self.path(record.sandbox_id)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.rename(path)

    def remove(self, sandbox_id: str) -> None:
        self.path(sandbox_id).unlink(missing_ok=True)

    def read(self, sandbox_id: str) -> SandboxRecord | None:
        try:
            return msgspec.json.decode(self.path(sandbox_id).read_bytes(), type=SandboxRecord)
        except FileNotFoundError:
            return None

    def all(self) -> list[SandboxRecord]:
        records = (self.read(path.stem) for path in sorted(self._directory.glob("*.json")))
        return [record for record in records if record is not None]

    def abandoned(self) -> list[SandboxRecord]:
        """Those whose owner is dead or whose time is over."""
        now = time.time()
        return [record for record in self.all() if record.expires_at < now or not is_alive(record.owner)]
