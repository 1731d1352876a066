"""A directory as files in memory, and files in memory as a directory.

Invariants:
- Reading never leaves the directory: a symbolic link that points out of it, loops, or names a directory is a problem,
  and special files are never opened. All problems of a directory are told at once.
- Writing is atomic: a neighbour is filled, flushed and renamed into place, so a reader sees the whole directory or none
  of it. No path leads out of it, none occurs twice.

Everything here is synchronous file work: call it through a worker thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from runtime.errors import TaskInvalid
from sandbox.spec import File

MAX_FILE_BYTES = 16 << 20
MAX_TASK_BYTES = 64 << 20
MAX_FILES = 5000
MAX_DEPTH = 64


def read_tree(directory: Path, *, skip: Collection[str] = ()) -> tuple[dict[str, File], list[str]]:
    """All files by path, and what is wrong with the others. Raises: TaskInvalid when it is no directory.

    Args:
        skip: paths that are not looked at.
    """
    if not directory.is_dir():
        raise TaskInvalid(str(directory), ["not a directory"])
    reader = _Reader(directory, skip)
    return {file.path: file for file in reader.files()}, reader.problems


def write_tree(files: Sequence[File], directory: Path) -> None:
    """Write the directory whole, replacing what was there.

    Raises: TaskInvalid for files that must not be written; OSError.
    """
    problems = [f"{f.path!r}: {problem}" for f in files if (problem := _path_problem(f.path))]
    problems += [f"{path!r} occurs twice" for path, count in Counter(f.path for f in files).items() if count > 1]
    if problems:
        raise TaskInvalid(str(directory), problems)
    fresh, old = (directory.with_name(f".{directory.name}.{kind}") for kind in ("partial", "old"))
    directory.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(mode=0o755)
    for file in files:
        _write_file(fresh, file)
    for folder, _, _ in os.walk(fresh):
        Path(folder).chmod(0o755)
        _sync_directory(Path(folder))
    if directory.exists():
        directory.rename(old)
    fresh.rename(directory)
    _sync_directory(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


class _Reader:
    """Walks a directory without leaving it."""

    def __init__(self, directory: Path, skip: Collection[str]) -> None:
        self.problems: list[str] = []
        self._root, self._skip = directory, skip
        self._real = directory.resolve()
        self._bytes = 0
        self._count = 0

    def files(self) -> Iterator[File]:
        yield from self._walk(PurePosixPath())

    def _walk(self, folder: PurePosixPath) -> Iterator[File]:
        if len(folder.parts) > MAX_DEPTH:
            self.problems.append(f"{folder}: more than {MAX_DEPTH} directories deep")
            return
        try:
            entries = sorted(os.scandir(self._root / folder), key=lambda entry: entry.name)
        except OSError as error:
            self.problems.append(f"{folder}: {error.strerror}")
            return
        for entry in entries:
            if self._count > MAX_FILES:
                return
            path = folder / entry.name
            if str(path) in self._skip:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            elif (file := self._read(path)) is not None:
                yield file

    def _read(self, path: PurePosixPath) -> File | None:
        self._count += 1
        if self._count > MAX_FILES:
            self.problems.append(f"more than {MAX_FILES} files")
            return None
        try:
            return self._open(path)
        except UnicodeEncodeError:
            self.problems.append(f"{str(path)!r}: the name is not UTF-8")
        except OSError as error:
            loop = error.errno == errno.ELOOP
            self.problems.append(f"{path}: {'symbolic links in a loop' if loop else error.strerror or error}")
        except _RefusedError as refused:
            self.problems.append(f"{path}: {refused}")
        return None

    def _open(self, path: PurePosixPath) -> File:
        str(path).encode()
        target = self._real / path
        if target.is_symlink():
            target = Path(os.path.realpath(target, strict=True))
        if not target.is_relative_to(self._real):
            raise _RefusedError("a symbolic link out of the task directory")
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as handle:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise _RefusedError("not a regular file")
            if info.st_size > MAX_FILE_BYTES:
                raise _RefusedError(f"{info.st_size} bytes, more than {MAX_FILE_BYTES}")
            self._bytes += info.st_size
            if self._bytes > MAX_TASK_BYTES:
                raise _RefusedError(f"the task holds more than {MAX_TASK_BYTES} bytes")
            return File(path=str(path), data=handle.read(MAX_FILE_BYTES + 1), mode=stat.S_IMODE(info.st_mode) & 0o777)


class _RefusedError(Exception):
    """A file that a task may not hold."""


def _path_problem(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return "leads out of the task directory"
    if any(part in ("", ".") for part in parts) or "\0" in path:
        return "not a plain relative path"
    return ""


def _write_file(root: Path, file: File) -> None:
    target = root / file.path
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with target.open("xb") as handle:
        handle.write(file.data)
        os.fchmod(handle.fileno(), file.mode & 0o777)
        handle.flush()
        os.fsync(handle.fileno())


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
