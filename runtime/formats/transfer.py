"""Whole folders of tasks from one format to another.

Invariants:
- Each task is written whole or not at all, and nothing that exists is replaced.
- One task that cannot be read or written stops no other: it is `refused`, with every problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.errors import TaskInvalid, UserError
from runtime.formats import endless_terminals, harbor, terminal_bench
from runtime.formats.format import Format
from runtime.formats.runnable import objections
from runtime.task import write_task
from runtime.tree import write_tree

FORMATS = {module.FORMAT.name: module.FORMAT for module in (harbor, terminal_bench, endless_terminals)}

_MAX_DEPTH = 3
"""Released sets hold their tasks within three folders."""

Write = Callable[[Path, Format, Path], "tuple[tuple[str, ...], tuple[str, ...]]"]


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """What became of one task."""

    source: Path
    format: str
    """The source's."""
    directory: Path | None
    """Where it was written; None when it was refused."""
    refused: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    """Why it cannot be run here; empty for a task that can, and for exports."""


def import_all(
    sources: Sequence[Path],
    out: Path,
    *,
    format_name: str,
    engine: Literal["docker", "namespace"],
    because: Sequence[str] = (),
) -> list[Transferred]:
    """Write every task found as a Harbor directory below `out`.

    Args:
        engine: what they are to be run with.
        because: why none of them can be run here, whatever it is.

    Raises: UserError when a source holds none; OSError.
    """

    def write(source: Path, kind: Format, target: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        imported = kind.read(source)
        write_task(imported.task, target)
        return imported.left_out, (*because, *objections(imported.task, engine=engine))

    return _transfer(sources, out, _formats(format_name), write)


def export_all(sources: Sequence[Path], out: Path, *, format_name: str) -> list[Transferred]:
    """Write every task found in another format below `out`. Raises: UserError when a source holds none; OSError."""
    target_format = FORMATS[format_name]

    def write(source: Path, kind: Format, target: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        exported = target_format.write(kind.read(source).task, source.resolve().name)
        write_tree(exported.files, target)
        return exported.left_out, ()

    return _transfer(sources, out, _formats(harbor.FORMAT.name), write)


def _transfer(sources: Sequence[Path], out: Path, formats: Sequence[Format], write: Write) -> list[Transferred]:
    found = list(_found(sources, formats))  # before anything is written, which may be below a source
    return [_one(source, kind, out, write) for source, kind in found]


def _one(source: Path, kind: Format, out: Path, write: Write) -> Transferred:
    target = out / source.resolve().name
    if target.exists():
        return Transferred(source=source, format=kind.name, directory=None, refused=(f"{target} exists",))
    try:
        left_out, because = write(source, kind, target)
    except TaskInvalid as invalid:
        return Transferred(source=source, format=kind.name, directory=None, refused=invalid.problems)
    return Transferred(source=source, format=kind.name, directory=target, left_out=left_out, because=because)


def _formats(name: str) -> list[Format]:
    return list(FORMATS.values()) if name == "auto" else [FORMATS[name]]


def _found(sources: Sequence[Path], formats: Sequence[Format]) -> Iterator[tuple[Path, Format]]:
    for source in sources:
        found = list(_walk(source, formats, _MAX_DEPTH))
        if not found:
            marks = ", ".join(kind.mark for kind in formats)
            raise UserError(str(source), f"no task is in it (none of {marks})", "Name task directories or a folder")
        yield from found


def _walk(folder: Path, formats: Sequence[Format], depth: int) -> Iterator[tuple[Path, Format]]:
    """Task directories at or below a folder, sorted; a task is not searched for others."""
    if (kind := next((kind for kind in formats if (folder / kind.mark).is_file()), None)) is not None:
        yield folder, kind
    elif depth and folder.is_dir():
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _walk(entry, formats, depth - 1)
