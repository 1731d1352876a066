"""Work on directory trees that hold whatever a sandbox wrote: descriptor by descriptor, never through a link."""

from __future__ import annotations

import os
import stat


def remove_tree(name: str, *, parent: int | None = None) -> None:
    """Remove the file, link or directory `name`. Idempotent."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        for entry in os.listdir(descriptor):
            remove_tree(entry, parent=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)


def open_directory(path: str, uid: int, gid: int) -> int:
    """A descriptor of the directory at absolute `path`, each missing part made with this owner and mode 755.

    Links that are already there are followed, within the caller's root; what is made here is not reached by a link.
    """
    current = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in filter(None, path.split("/")):
        try:
            following = _enter(part, current, uid, gid)
        finally:
            os.close(current)
        current = following
    return current


def _enter(part: str, parent: int, uid: int, gid: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(part, flags, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(part, 0o755, dir_fd=parent)
    made = os.open(part, flags | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.fchown(made, uid, gid)
    except BaseException:
        os.close(made)
        raise
    return made
