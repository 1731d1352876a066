"""Lease files: one `SandboxRecord` as JSON for each sandbox, in `<state_dir>/sandboxes`.

A lease exists before its sandbox and goes after it, so whatever a crash leaves behind is named here. Files appear
atomically; they are not synced, since nothing that they name survives a restart of the machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sandbox.owner import owner_is_alive
from sandbox.spec import SandboxRecord


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
        """Those whose time is over or whose owner does not run here: nothing that they name outlives the machine."""
        now = time.time()
        return [record for record in self.all() if record.expires_at < now or not owner_is_alive(record.owner)]
