"""What takes up the space in a directory tree: totals, largest files, kinds, empty ones, human-readable sizes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

from generators.procedural import words
from generators.procedural.checks import present
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, text_file

name = "disk-report"
category = "monitoring"
tools: tuple[str, ...] = ("find", "sort", "awk", "numfmt", "du")
depths = range(1, 6)

_TELLING_SIZES = {4: 0, 5: 0, 6: 0, 7: 95, 8: 2048}
"""Always there, by number of the file: empty ones, and a small one that sorts as text before every large one."""

Sizes = dict[str, int]
"""Bytes by path below the tree."""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    top = rng.choice(words.PROJECTS)
    sizes = _sizes(rng)
    jobs: tuple[Callable[[random.Random, Sizes, str, Place], Step], ...] = (
        _by_folder,
        _largest,
        _by_kind,
        _above,
        _empty,
        _readable,
    )
    files = [text_file(place, f"{top}/{path}", _filler(rng, size)) for path, size in sizes.items()]
    return assemble(
        family=name,
        title=f"Space used by {top}",
        place=place,
        openings=(
            f"Report on the files below {place.directory}/{top}. A size is always the length of the content in bytes (what `ls -l` shows), not what it takes up on the disk.",
            f"I'm cleaning up and need to know what is in {place.directory}/{top}. Whenever I say size I mean the bytes of content, as in `ls -l`, not blocks on the disk.",
            f"The tree {place.directory}/{top} has grown and I want some figures about it; sizes are lengths in bytes as `ls -l` tells them, not disk usage.",
        ),
        steps=[job(rng, sizes, top, place) for job in rng.sample(jobs, depth)],
        files=files,
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
    )


def _sizes(rng: random.Random) -> Sizes:
    folders = words.distinct(rng, words.AREAS, 4)
    deep = [f"{rng.choice(folders)}/{year}" for year in rng.sample(range(2015, 2025), 2)]
    kinds = rng.sample((".txt", ".csv", ".log", ".md", ".json"), 4)
    sizes: Sizes = {}
    for index, file in enumerate(words.file_names(rng, rng.randint(16, 20), kinds)):
        folder = folders[index] if index < 4 else rng.choice([*folders, *deep])
        drawn = rng.choice((rng.randint(1, 90), rng.randint(100, 999), rng.randint(1000, 6000)))
        sizes[f"{folder}/{file}"] = _TELLING_SIZES.get(index, drawn)
    return sizes


def _filler(rng: random.Random, size: int) -> str:
    line = words.phrase(rng) + "\n"
    return (line * (size // len(line) + 1))[:size]


def _ranked(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def _by_folder(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    totals: Counter[str] = Counter()
    for path, size in sizes.items():
        totals[path.split("/")[0]] += size
    target = f"{place.directory}/folders.txt"
    collect = (
        "awk '{{split($2, part, \"/\"); sum[part[1]] += {what}}} END {{for (folder in sum) print sum[folder], folder}}'"
    )
    listing, order = f"find {top} -type f -printf '%s %P\\n'", "LC_ALL=C sort -k1,1nr -k2,2"
    return report(
        place,
        "folders.txt",
        [f"{size} {folder}" for folder, size in _ranked(totals.items())],
        f"{listing} | {collect.format(what='$1')} | {order}",
        says=(
            f"Write to {target} for each directory directly in {place.directory}/{top} the total size of all files below it, at any depth: bytes, one blank, name of the directory; largest first, equal totals by name.",
            f"Sum up the sizes of all files under each of the directories immediately inside {place.directory}/{top} (deeper levels included) and save lines `bytes name` to {target}, the biggest at the top, ties by name.",
            f"How many bytes are there below each of the first-level directories of {place.directory}/{top}, all levels counted? Lines such as `4711 notes` in {target}, in descending order, equal ones by name.",
        ),
        thought="find prints size and path, awk adds up by the first component.",
        slips=(
            (
                "analysis_error",
                f"du -b -d1 {top} | sed 's#{top}/##' | awk 'NF == 2 {{print $1, $2}}' | {order}",
                "du has a total for each directory.",
            ),
            (
                "requirement_violation",
                f"{listing} | {collect.format(what='$1')} | LC_ALL=C sort -n",
                "Sorted by number.",
            ),
            (
                "command_error",
                f"{listing} | {collect.format(what='1')} | {order}",
                "Each file adds to the sum of its directory.",
            ),
        ),
    )


def _largest(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    count = rng.randint(3, 6)
    target = f"{place.directory}/largest.txt"
    listing = f"find {top} -type f -printf '%s %P\\n'"
    order = f"LC_ALL=C sort -k1,1nr -k2,2 | head -{count}"
    return report(
        place,
        "largest.txt",
        [f"{size} {path}" for path, size in _ranked(sizes.items())][:count],
        f"{listing} | {order}",
        says=(
            f"List the {count} largest files of the whole tree in {target}: bytes, one blank, path relative to {place.directory}/{top} (no ./ in front); largest first, equal sizes by path.",
            f"Find the {count} biggest files anywhere under {place.directory}/{top} and put `bytes path` for each into {target}, paths counted from {place.directory}/{top} without ./, biggest at the top and ties by path.",
            f"Which {count} files are the largest? Size in bytes, a blank and the path from {place.directory}/{top} on (without ./) go to {target}, in descending order, ties by path.",
        ),
        thought="Size and relative path of each file, sorted by number, the first few.",
        slips=(
            (
                "command_error",
                f"{listing} | LC_ALL=C sort -r | head -{count}",
                "A reverse sort brings the big ones up.",
            ),
            ("requirement_violation", f"find {top} -type f -printf '%s %p\\n' | {order}", "%p is the path."),
        ),
    )


def _by_kind(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    counts = Counter(path.rsplit(".", 1)[1] for path in sizes)
    target = f"{place.directory}/kinds.txt"
    extensions = f"find {top} -type f | sed 's/.*\\.//' | LC_ALL=C sort"
    return report(
        place,
        "kinds.txt",
        [f"{kind} {counts[kind]}" for kind in sorted(counts)],
        f"{extensions} | uniq -c | awk '{{print $2, $1}}'",
        says=(
            f"Count the files below {place.directory}/{top} by extension (the part after the last dot) and write `extension number` lines to {target}, one blank between, in alphabetical order of the extension.",
            f"Save to {target} how many files there are of each kind under {place.directory}/{top}, the kind being what follows the last dot: lines like `csv 5`, sorted by extension.",
            f"What kinds of files are there, by the ending after the last dot, and how many of each? Extension, blank, number in {target}, from A to Z.",
        ),
        thought="Keep what follows the last dot, count equal ones, turn the columns round.",
        slips=(
            ("requirement_violation", f"{extensions} | uniq -c", "uniq -c counts them."),
            (
                "command_error",
                f"find {top} -type f | sed 's/.*\\.//' | uniq -c | awk '{{print $2, $1}}'",
                "uniq counts equal lines.",
            ),
        ),
    )


def _above(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    limit = sorted(sizes.values())[-rng.randint(5, 8)]
    over = sorted(path for path, size in sizes.items() if size > limit)
    target = f"{place.directory}/above-{limit}.txt"
    tail = "LC_ALL=C sort"
    return report(
        place,
        f"above-{limit}.txt",
        over,
        f"find {top} -type f -size +{limit}c -printf '%P\\n' | {tail}",
        says=(
            f"Write the paths (relative to {place.directory}/{top}, no ./) of all files with more than {limit} bytes to {target}, sorted by byte value.",
            f"Collect every file under {place.directory}/{top} that is larger than {limit} bytes in {target}: paths from {place.directory}/{top} on, without ./, one a line in the order of LC_ALL=C sort.",
            f"I want to see all files of more than {limit} bytes, exactly {limit} not counted: their paths from {place.directory}/{top} on (no ./) in {target}, in LC_ALL=C order.",
        ),
        thought="-size +Nc compares in bytes.",
        slips=(
            ("command_error", f"find {top} -type f -size +{limit} -printf '%P\\n' | {tail}", "-size takes the number."),
            (
                "analysis_error",
                f"find {top} -type f -size +{limit - 1}c -printf '%P\\n' | {tail}",
                "The limit itself is large enough to be listed.",
            ),
        ),
    )


def _empty(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    target = f"{place.directory}/empty.txt"
    return report(
        place,
        "empty.txt",
        sorted(path for path, size in sizes.items() if not size),
        f"find {top} -type f -empty -printf '%P\\n' | LC_ALL=C sort",
        says=(
            f"List the empty files of the tree in {target}: paths relative to {place.directory}/{top} without ./, sorted by byte value.",
            f"Find all files without content under {place.directory}/{top} and save their paths, from there on and without ./, to {target}, in the order of LC_ALL=C sort.",
            f"Some files have nothing in them. Which ones? Paths from {place.directory}/{top} on, no ./, in LC_ALL=C order, in {target}.",
        ),
        thought="find has -empty; only regular files, relative paths.",
        slips=(
            (
                "analysis_error",
                f"find {top} -type f -size -2 -printf '%P\\n' | LC_ALL=C sort",
                "A size below two means that there is nothing in it.",
            ),
            ("requirement_violation", f"find {top} -type f -empty | LC_ALL=C sort", "find prints the paths."),
        ),
    )


def _readable(rng: random.Random, sizes: Sizes, top: str, place: Place) -> Step:
    total = sum(sizes.values())
    target = f"{place.directory}/total.txt"
    add = f"find {top} -type f -printf '%s\\n' | awk '{{sum += $1}} END {{print sum}}'"
    return report(
        place,
        "total.txt",
        [f"{total} bytes in {len(sizes)} files"],
        f'echo "$({add}) bytes in $(find {top} -type f | wc -l) files"',
        says=(
            f"Write one line to {target} with the total size and the number of all files, like `12345 bytes in 67 files`.",
            f"Put the sum of all sizes and the number of files into {target}, as one line of the form `12345 bytes in 67 files`.",
            f"In all, how much is it? One line like `12345 bytes in 67 files` in {target}, please, for every file in the tree.",
        ),
        thought="Sum of the sizes with awk, number of files with wc.",
        slips=(
            (
                "analysis_error",
                f'echo "$(du -sb {top} | cut -f1) bytes in $(find {top} -type f | wc -l) files"',
                "du -sb is the total in bytes.",
            ),
            (
                "command_error",
                f'echo "$({add}) bytes in $(find {top} | wc -l) files"',
                "find lists the files, wc counts them.",
            ),
            (
                "requirement_violation",
                f'echo "$({add} | numfmt --to=iec) bytes in $(find {top} -type f | wc -l) files"',
                "A size in K is easier to read.",
            ),
        ),
    )
