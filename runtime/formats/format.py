"""What a task format is to us: a mark by which a directory is known, a reader and a writer.

Invariants:
- What a format says that Harbor's has no place for is kept, byte for byte, in the task's folder `origin/`. It goes
  neither into an image nor into a suite, so a private truth may lie there.
- What is written back comes from `origin/` where the task still says the same, so an import and an export of an
  untouched task give the same bytes; else from the task.
- What cannot be carried over is named in `left_out`, and what must be carried over and cannot is a `TaskInvalid`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from runtime.task import Task
from sandbox.spec import File

ORIGIN = "origin"
TEST_SH = "tests/test.sh"
SOLVE_SH = "solution/solve.sh"
DOCKERFILE = "environment/Dockerfile"


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A directory of some format as a task."""

    task: Task
    left_out: tuple[str, ...] = ()
    """Files that were not taken over."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A task as the files of some format."""

    files: tuple[File, ...]
    left_out: tuple[str, ...] = ()
    """Files of the task for which the format has no place."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format. Both functions raise TaskInvalid with every problem found."""

    name: str
    mark: str
    """The file that each of its task directories has at the top."""
    read: Callable[[Path], Imported]
    write: Callable[[Task, str], Exported]
    """Task and directory name to files."""


def moved(files: Iterable[File], folder: str) -> tuple[File, ...]:
    """The files in a folder."""
    return tuple(File(path=f"{folder}/{file.path}", data=file.data, mode=file.mode) for file in files)


def at(path: str, file: File) -> File:
    """The same file under another path."""
    return File(path=path, data=file.data, mode=file.mode)


def find(files: Iterable[File], path: str) -> File | None:
    """The file of this path, None when there is none."""
    return next((file for file in files if file.path == path), None)


def kept(task: Task, path: str) -> File | None:
    """A file as the task's first format had it."""
    file = find(task.files, f"{ORIGIN}/{path}")
    return at(path, file) if file else None


def misplaced_script(files: Mapping[str, File]) -> list[str]:
    """What speaks against a tests/test.sh that lies in another format's directory: here, it decides the reward."""
    script = files.get(TEST_SH)
    if script is None or b"/logs/verifier" in script.data:
        return []
    return [f"{TEST_SH} has a meaning of its own in a task, but this one writes no reward to /logs/verifier"]


def plain(value: Any) -> Any:
    """A value of YAML or JSON as TOML can hold it: without nulls, with names as keys."""
    match value:
        case dict():
            return {str(key): plain(entry) for key, entry in value.items() if entry is not None}
        case list() | tuple() | set():
            return [plain(entry) for entry in value if entry is not None]
        case bool() | int() | float() | str() | date() | datetime():
            return value
    return str(value)
