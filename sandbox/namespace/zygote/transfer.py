"""Files into and out of a sandbox. Runs in a fork, inside the sandbox's mount namespace, with few capabilities.

A parcel is one descriptor of memory: eight bytes of length, a JSON list of entries, then the files' bytes in order.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TypedDict

from .accounts import numeric_owner
from .tree import open_directory

_BLOCK = 1 << 20
_HEADER = 8


class Entry(TypedDict):
    """One file or directory to place."""

    path: str
    owner: str
    """`user`, `user:group`, names or numbers, as the sandbox knows them."""
    mode: int
    size: int
    """Bytes of content; -1 for a directory."""
    inside: str
    """When `path` turns out to be a directory, the file goes into it under this name; empty: that is an error."""


class RefusedError(Exception):
    """The transfer cannot be done: says why, for the caller to show."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


def place(parcel: int) -> None:
    """Put every entry of `parcel` where it belongs, each file complete or not at all. Raises: RefusedError."""
    length = int.from_bytes(os.pread(parcel, _HEADER, 0), "little")
    entries: list[Entry] = json.loads(os.pread(parcel, length, _HEADER))
    offset = _HEADER + length
    for entry in entries:
        try:
            _place_one(entry, parcel, offset)
        except OSError as error:
            raise RefusedError(entry["path"], error.strerror or str(error)) from error
        offset += max(entry["size"], 0)


def _place_one(entry: Entry, parcel: int, offset: int) -> None:
    uid, gid = numeric_owner(entry["owner"])
    if entry["size"] < 0:
        os.close(open_directory(entry["path"], uid, gid))
        return
    path = entry["path"]
    if entry["inside"] and os.path.isdir(path):
        path = f"{path}/{entry['inside']}"
    folder, _, name = path.rpartition("/")
    directory = open_directory(folder, uid, gid)
    try:
        _write_file(directory, name, entry, (uid, gid), (parcel, offset))
    finally:
        os.close(directory)


def _write_file(directory: int, name: str, entry: Entry, owner: tuple[int, int], source: tuple[int, int]) -> None:
    temporary = f".{os.urandom(8).hex()}"
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        _copy(*source, entry["size"], descriptor)
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, entry["mode"])
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)


def _copy(source: int, offset: int, size: int, target: int) -> None:
    end = offset + size
    while offset < end:
        block = os.pread(source, min(_BLOCK, end - offset), offset)
        while block:
            written = os.write(target, block)
            block = block[written:]
            offset += written


def take(path: str, limit: int, target: int) -> bool:
    """Copy the regular file at `path` to `target`; False when there is none. Raises: RefusedError above `limit`."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return False
        total = 0
        while block := os.read(source, min(_BLOCK, limit + 1 - total)):
            total += len(block)
            if total > limit:
                raise RefusedError(path, f"larger than {limit} bytes")
            os.write(target, block)
        return True
    finally:
        os.close(source)
