"""Lease files: one `SandboxRecord` as JSON for each sandbox, in `<state_dir>/sandboxes`.

A lease exists before its sandbox and goes after it, so whatever a crash leaves behind is named here. Files appear
atomically; they are not synced, since nothing that they name survives a restart of the machine. What a power cut tore
names its sandbox still, by the file's name: it is abandoned.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sandbox.owner import owner_is_alive
from sandbox.spec import SandboxRecord

_OWNED_BY, _HALF = ".of-", ".new"


class Leases:
    """The directory of lease files. All methods block briefly on the file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, sandbox_id: str) -> Path:
        return self._directory / f"{sandbox_id}.json"

    def write(self, record: SandboxRecord) -> None:
        path = self.path(record.sandbox_id)
        temporary = path.with_suffix(f"{_OWNED_BY}{record.owner}{_HALF}")
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.rename(path)

    def remove(self, sandbox_id: str) -> None:
        self.path(sandbox_id).unlink(missing_ok=True)

    def holds(self, sandbox_id: str) -> bool:
        """Whether there is a lease, readable or not."""
        return self.path(sandbox_id).exists()

    def all(self) -> list[SandboxRecord]:
        return [record for record in self._read().values() if record is not None]

    def abandoned(self) -> list[str]:
        """Those whose time is over or whose owner does not run here: nothing that they name outlives the machine."""
        now = time.time()
        return [
            sandbox_id
            for sandbox_id, record in self._read().items()
            if record is None or record.expires_at < now or not owner_is_alive(record.owner)
        ]

    def drop_halves(self) -> None:
        """Remove what writers that do not run any more left of a lease: it named no sandbox yet."""
        for path in self._directory.glob(f"*{_HALF}"):
            if not owner_is_alive(path.name.removesuffix(_HALF).partition(_OWNED_BY)[2]):
                path.unlink(missing_ok=True)

    def _read(self) -> dict[str, SandboxRecord | None]:
        """The lease of each sandbox; None for one that cannot be read."""
        found: dict[str, SandboxRecord | None] = {}
        for path in sorted(self._directory.glob("*.json")):
            try:
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=SandboxRecord)
            except FileNotFoundError:  # removed meanwhile
                continue
            except msgspec.DecodeError:
                found[path.stem] = None
        return found
