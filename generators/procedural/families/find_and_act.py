"""Find files by size, name, age or emptiness in a deep tree, and do something with exactly those."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from generators.procedural import words
from generators.procedural.checks import absent, bytes_are, lines_are, present, tree_is
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "find-and-act"
category = "file operations"
tools: tuple[str, ...] = ("cat", "find", "mv", "sort", "xargs")
depths = range(1, 6)


@dataclass(frozen=True)
class Found:
    """A file below the top directory."""

    path: str
    size: int
    modified: datetime
    """Noon of a day, UTC."""

    @property
    def base(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass
class Scene:
    """The tree as it stands; `notes` are the small text files with their content."""

    rng: random.Random
    at: str
    top: str
    files: list[Found]
    notes: dict[str, str]
    names: list[str]
    aside: str
    outputs: list[str] = field(default_factory=list)

    def answer(self) -> str:
        self.outputs.append(self.names.pop())
        return self.outputs[-1]


def _large(scene: Scene) -> Step:
    out, top = scene.answer(), scene.top
    limit = scene.rng.choice((8000, 10000, 12000))
    lines = [
        f"{file.size} {file.path}" for file in sorted(scene.files, key=lambda f: (-f.size, f.path)) if file.size > limit
    ]
    order = "LC_ALL=C sort -k1,1nr -k2,2"
    return Step(
        says=(
            f"List the files below {scene.at}/{top} larger than {limit} bytes as `BYTES PATH`, the path relative to {scene.at}/{top}, largest first and equal "
            f"sizes by path, in {scene.at}/{out}.",
            f"Which files anywhere under {scene.at}/{top} have more than {limit} bytes? Lines `BYTES PATH` in {scene.at}/{out}, path counted from {top} without "
            "./, biggest on top, ties by path.",
            f"Space is short: write every file under {scene.at}/{top} with over {limit} bytes to {scene.at}/{out}, as `BYTES PATH` (path starting below {top}), "
            "largest first, same size by path.",
        ),
        thought="-size with c compares exact bytes, and printf gives size and relative path.",
        command=f"find {top} -type f -size +{limit}c -printf '%s %P\\n' | {order} > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "command_error",
                f"find {top} -type f -size +{limit} -printf '%s %P\\n' | {order} > {out}",
                "-size takes the number of bytes.",
            ),
            slip(
                "requirement_violation",
                f"find {top} -type f -size +{limit}c -printf '%s %p\\n' | {order} > {out}",
                "%p is the path.",
            ),
            slip(
                "analysis_error",
                f"find {top} -maxdepth 1 -type f -size +{limit}c -printf '%s %P\\n' | {order} > {out}",
                "They lie in that directory.",
            ),
        ),
    )


def _recent(scene: Scene) -> Step:
    out, top = scene.answer(), scene.top
    days = sorted(file.modified for file in scene.files)
    since = days[len(days) // 2]
    lines = sorted(file.path for file in scene.files if file.modified >= since)
    day = f"{since:%Y-%m-%d}"
    return Step(
        says=(
            f"List the files below {scene.at}/{top} modified on {day} (UTC) or later, path relative to {scene.at}/{top}, sorted in byte order, in {scene.at}/{out}.",
            f"What has changed under {scene.at}/{top} since the start of {day} UTC? Sorted paths below {top}, without ./, one per line, in {scene.at}/{out}.",
            f"Write to {scene.at}/{out} which files under {scene.at}/{top} carry a modification date of {day} UTC or younger: paths from {top} on (no ./), sorted.",
        ),
        thought="-newermt compares with a point in time; midnight includes the whole day.",
        command=f"find {top} -type f -newermt '{day} 00:00 UTC' -printf '%P\\n' | LC_ALL=C sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "analysis_error",
                f"find {top} -type f -newermt '{day} 23:59:59 UTC' -printf '%P\\n' | LC_ALL=C sort > {out}",
                "Later than that day.",
            ),
            slip(
                "command_error",
                f"find {top} -type f ! -newermt '{day} 00:00 UTC' -printf '%P\\n' | LC_ALL=C sort > {out}",
                "The test names the day.",
            ),
            slip(
                "requirement_violation",
                f"find {top} -type f -newermt '{day} 00:00 UTC' -printf '%TF %P\\n' | LC_ALL=C sort > {out}",
                "The date helps.",
            ),
        ),
    )


def _join_notes(scene: Scene) -> Step:
    out, top = scene.answer(), scene.top
    text = "".join(scene.notes[path] for path in sorted(scene.notes))
    search = f"find {top} -type f -name '*.note'"
    return Step(
        says=(
            f"Concatenate all .note files below {scene.at}/{top}, in byte order of their paths, into {scene.at}/{out}.",
            f"Join the .note files from everywhere under {scene.at}/{top} into one file {scene.at}/{out}, ordered by path.",
            f"All the .note files scattered under {scene.at}/{top} should be in one file, {scene.at}/{out}, one after the other in order of their paths.",
        ),
        thought="Sort the paths before cat sees them.",
        command=f"{search} -print0 | LC_ALL=C sort -z | xargs -0 cat > {out}",
        checks=(bytes_are(f"{scene.at}/{out}", text.encode()),),
        mistakes=(
            slip("command_error", f"{search} | sort > {out}", "The sorted files go into one file."),
            slip("analysis_error", f"cat {top}/*.note > {out}", "The notes lie in that directory."),
            slip(
                "requirement_violation",
                f"{search} -print0 | LC_ALL=C sort -rz | xargs -0 cat > {out}",
                "The last one is the newest.",
            ),
        ),
    )


def _drop_empty(scene: Scene) -> Step:
    top = scene.top
    empty = sorted(file.path for file in scene.files if not file.size)
    scene.files = [file for file in scene.files if file.size]
    return Step(
        says=(
            f"Delete all empty files below {scene.at}/{top}; no other file goes.",
            f"Remove the files of zero bytes anywhere under {scene.at}/{top}, and only those.",
            f"There are some empty files under {scene.at}/{top}. Please delete them, nothing else.",
        ),
        thought="-empty with -type f, and -delete last.",
        command=f"find {top} -type f -empty -delete",
        mistakes=(
            slip("analysis_error", f"rm {top}/{empty[0]}", "That is the empty file."),
            slip("command_error", f"find {top} -type f -size 1 -empty -delete", "Empty files still take one block."),
            slip("verification_failure", f"find {top} -type f -empty", "find shows them, so they are handled."),
        ),
    )


def _move_suffix(scene: Scene) -> Step:
    top, aside = scene.top, scene.aside
    moved = sorted(file.base for file in scene.files if file.path.endswith(".bak"))
    back = [file.path for file in scene.files if file.path.endswith(".bak")]
    scene.files = [file for file in scene.files if not file.path.endswith(".bak")]
    scene.outputs.append(aside)
    shallow = f"find {top} -maxdepth 1 -type f -name '*.bak' -exec mv -t {aside} {{}} +"
    restore = [f"mv {aside}/{path.rsplit('/', 1)[-1]} {top}/{path}" for path in back if "/" not in path]
    return Step(
        says=(
            f"Create {scene.at}/{aside} and move every .bak file from anywhere below {scene.at}/{top} directly into it (their names are all different).",
            f"Gather the .bak files from all levels of {scene.at}/{top} in a new directory {scene.at}/{aside}, without subdirectories; no two share a name.",
            f"Every .bak file under {scene.at}/{top} should move out into {scene.at}/{aside} (new, flat; the names don't clash).",
        ),
        thought="One find for all levels, and mv -t takes many files at once.",
        command=f"mkdir {aside} && find {top} -type f -name '*.bak' -exec mv -t {aside} {{}} +",
        checks=(tree_is(f"{scene.at}/{aside}", moved),),
        mistakes=(
            slip(
                "analysis_error",
                f"mkdir {aside} && {shallow}",
                "The backups lie in that directory.",
                *restore,
                f"rmdir {aside}",
            ),
            slip(
                "requirement_violation",
                f"mkdir {aside} && find {top} -type f -name '*.bak' -exec cp -t {aside} {{}} +",
                "They are in it then.",
                f"rm -r {aside}",
            ),
            slip(
                "command_error",
                f"find {top} -type f -name '*.bak' -exec mv -t {aside} {{}} +",
                "mv -t makes the directory.",
            ),
        ),
    )


_JOBS: tuple[Callable[[Scene], Step], ...] = (_large, _recent, _join_notes, _drop_empty, _move_suffix)


def _files(rng: random.Random, folders: list[str]) -> list[Found]:
    names = words.file_names(rng, rng.randint(12, 16), (".log", ".dat", ".img"))
    names += words.file_names(rng, 4, (".bak",))
    start = words.moment(rng).replace(hour=12, minute=0, second=0)
    found = []
    for n, file in enumerate(names):
        folder = folders[n % len(folders)]
        size = 0 if 2 <= n < 5 else rng.choice((rng.randint(200, 7000), rng.randint(12500, 30000)))
        if n < 2:
            size = rng.randint(12500, 30000)
        found.append(Found(f"{folder}{file}", size, start + timedelta(days=rng.randint(0, 400))))
    return found


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Lists first, then what changes the tree."""
    top, aside = words.distinct(rng, words.AREAS, 2)
    inner = words.distinct(rng, words.PROJECTS, 3)
    folders = ["", f"{inner[0]}/", f"{inner[0]}/{inner[1]}/", f"{inner[2]}/"]
    sized = _files(rng, folders)
    notes = {
        f"{folder}{file}": words.prose(rng, 2)
        for folder, file in zip(folders, words.file_names(rng, 4, (".note",)), strict=True)
    }
    day = sized[0].modified
    written = [Found(path, len(text), day) for path, text in notes.items()]
    names = [f"{stem}.{rng.choice(('txt', 'lst', 'out'))}" for stem in words.distinct(rng, words.STEMS, 5)]
    scene = Scene(rng, place.directory, top, [*sized, *written], notes, names, aside)
    chosen = sorted(rng.sample(range(len(_JOBS)), depth))
    steps = [_JOBS[index](scene) for index in chosen]
    everything = [*sized, *written]
    return assemble(
        family=name,
        title="Clean up a grown directory",
        place=place,
        openings=(
            f"The directory {place.directory}/{top} has grown over the years.",
            f"I'm cleaning up {place.directory}/{top} (with its subdirectories).",
            f"Help me get an overview of {place.directory}/{top} and everything below.",
        ),
        steps=steps,
        files=[text_file(place, f"{top}/{path}", text) for path, text in notes.items()],
        setup=(
            f"mkdir -p {' '.join(f'{top}/{folder}' for folder in folders)}",
            *(f"head -c {file.size} /dev/zero | tr '\\0' x > {top}/{file.path}" for file in sized),
            *(f"touch -d '{file.modified:%Y-%m-%d} 12:00:00 UTC' {top}/{file.path}" for file in everything),
        ),
        initial_checks=(
            present(f"{place.directory}/{top}", [file.path for file in everything]),
            *(absent(f"{place.directory}/{out}") for out in scene.outputs),
        ),
        guards=(tree_is(f"{place.directory}/{top}", [file.path for file in scene.files]),),
    )
