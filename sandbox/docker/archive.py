"""Files as tar archives, in memory. Pure.

Invariants:
- Paths that go in are absolute and normal; none climbs out of its root.
- Nothing that comes out is unpacked to a disk: one regular file is read as bytes, all else is refused.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from sandbox.errors import TransferRefused
from sandbox.spec import AGENT_HOME, AGENT_UID, File


def absolute(path: str) -> str:
    """`path`, normal and without a trailing slash. Raises: TransferRefused when it is not absolute or holds a NUL."""
    if not path.startswith("/") or "\0" in path:
        raise TransferRefused(path, "the path is not absolute")
    return "/" + posixpath.normpath(path).lstrip("/")


def relative(path: str) -> str:
    """`path` inside a build context. Raises: TransferRefused when it leaves the context."""
    normal = posixpath.normpath(path)
    if path.startswith("/") or "\0" in path or normal == ".." or normal.startswith("../"):
        raise TransferRefused(path, "the path leaves the build context")
    return normal


def pack(entries: Iterable[tuple[str, File]]) -> bytes:
    """A tar of regular files, each under its name, with the owner and mode that the file asks for."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in entries:
            info = tarfile.TarInfo(name.lstrip("/"))
            info.size, info.mode = len(file.data), file.mode
            info.uid = info.gid = AGENT_UID if file.owner == "agent" else 0
            tar.addfile(info, io.BytesIO(file.data))
    return buffer.getvalue()


def agent_directories(files: Iterable[File]) -> list[str]:
    """Directories that should exist, as the agent's own, before the agent's files arrive."""
    parents = {posixpath.dirname(absolute(file.path)) for file in files if file.owner == "agent"}
    return sorted(parents - {"/", "/tmp", AGENT_HOME})  # noqa: S108 (a path inside the sandbox)


def pack_tree(tree: Path, target: IO[bytes], *, last: str) -> None:
    """A tar of a directory of ours, owned by root; its last entry is an empty file named `last`."""

    def by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tree, arcname=".", filter=by_root)
        tar.addfile(by_root(tarfile.TarInfo(last)))


def sole_file(archive: bytes) -> bytes | None:
    """The content of the one regular file in an archive; None when its entry is of another kind."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        member = tar.next()
        if member is None or not member.isreg():
            return None
        content = tar.extractfile(member)
        return content.read() if content is not None else None
