"""Files on their way into a sandbox, in the form that `sandbox.namespace.zygote.transfer` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from sandbox.errors import TransferRefused
from sandbox.namespace.zygote.transfer import Entry
from sandbox.spec import File, Record

MAX_BYTES = 256 << 20
"""Of one transfer: it is held in memory once more while it lasts."""
_HEADER = 8


class Placed(Record, frozen=True, kw_only=True):
    """One file or directory to place. See `Entry` for the fields."""

    path: str
    owner: str = "root"
    data: bytes | None = None
    """None for a directory."""
    mode: int = 0o755
    inside: str = ""

    @classmethod
    def of(cls, file: File) -> Placed:
        return cls(path=file.path, owner=file.owner, data=file.data, mode=file.mode)

    def entry(self) -> Entry:
        size = -1 if self.data is None else len(self.data)
        return {"path": self.path, "owner": self.owner, "mode": self.mode, "size": size, "inside": self.inside}


def pack(placed: Sequence[Placed]) -> int:
    """A descriptor of memory with all of it; the caller closes it. Raises: TransferRefused."""
    total = sum(len(item.data or b"") for item in placed)
    if total > MAX_BYTES:
        raise TransferRefused(placed[0].path, f"{total} bytes at once are above the limit of {MAX_BYTES}")
    manifest = json.dumps([item.entry() for item in placed]).encode()
    descriptor = os.memfd_create("put")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(len(manifest).to_bytes(_HEADER, "little"))
        file.write(manifest)
        for item in placed:
            file.write(item.data or b"")
    return descriptor
