"""Content-addressed files: what is too big for a message travels as its SHA-256.

Invariants:
- A blob's name is the digest of its content; equal content is one file.
- A blob is complete or absent: written beside its place, synced, renamed.
- What is read is checked against its name; a damaged blob is an error, never data.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from runtime.errors import StoreError


class Blobs:
    """A directory of blobs. Methods block for one local file: call them in a worker thread for big content."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, data: bytes) -> str:
        """Keep `data`; returns its digest. Raises: StoreError when the disk refuses."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        if not path.exists():
            try:
                _write(path, data)
            except OSError as error:
                raise StoreError(
                    str(path), error.strerror or str(error), "Free space or choose another state directory"
                ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The content. Raises: KeyError when absent, StoreError when damaged."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(digest) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreError(str(path), "the content does not match its name", "Remove the file and run again")
        return data

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / digest


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
