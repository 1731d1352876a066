"""COPY against a build context: which files it takes, and where each goes."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator, Sequence

from sandbox.dockerfile import Copy, DockerfileError
from sandbox.namespace.parcel import Placed
from sandbox.spec import File


def select(copy: Copy, files: Sequence[File]) -> list[Placed]:
    """The files that `copy` takes from the context `files`. Raises: DockerfileError when a source matches none."""
    placed = [_placed(copy, file.path, file) for file in copy.inline]
    for source in copy.sources:
        found = list(_matching(posixpath.normpath(source).lstrip("/"), files))
        if not found:
            raise DockerfileError(copy.text, f"{source!r} is not in the build context")
        placed += [_placed(copy, name, file) for name, file in found]
    return placed


def _placed(copy: Copy, name: str, file: File) -> Placed:
    mode = file.mode if copy.mode is None else copy.mode
    below_target = copy.into_directory or "/" in name
    return Placed(
        path=posixpath.normpath(posixpath.join(copy.target, name)) if below_target else copy.target,
        inside="" if below_target else name,
        owner=copy.owner,
        data=file.data,
        mode=mode,
    )


def _matching(pattern: str, files: Sequence[File]) -> Iterator[tuple[str, File]]:
    """What `pattern` names: a copied file with its name, one of a copied directory with `./` and its path there."""
    wanted = [] if pattern == "." else pattern.split("/")
    for file in files:
        parts = posixpath.normpath(file.path).split("/")
        head, below = parts[: len(wanted)], parts[len(wanted) :]
        if len(head) == len(wanted) and all(map(fnmatch.fnmatchcase, head, wanted)):
            yield (f"./{'/'.join(below)}" if below else head[-1]), file
