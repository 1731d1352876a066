"""Differences as data: make a patch, apply one, take one back, list what differs, merge two lines of work."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping
from dataclasses import dataclass

from generators.messages import Mistake
from generators.procedural import words
from generators.procedural.checks import check, present, tree_holds, tree_is
from generators.procedural.family import Piece, Place
from generators.procedural.reports import misplaced, report
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.spec import File

name = "diff-and-patch"
category = "text processing"
tools: tuple[str, ...] = ("diff", "patch", "diff3")
depths = range(1, 6)

Tree = Mapping[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A step with the inputs that it needs."""

    step: Step
    files: tuple[File, ...]


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    makers = rng.sample((_make_patch, _apply, _take_back, _differences, _merge), depth)
    stems = words.distinct(rng, words.PROJECTS, depth)
    jobs = [make(rng, place, stem) for make, stem in zip(makers, stems, strict=True)]
    files = [file for job in jobs for file in job.files]
    return assemble(
        family=name,
        title="Compare and patch",
        place=place,
        openings=(
            f"In {place.directory} there are versions of some documents to compare or bring together.",
            f"I have different versions of a few documents in {place.directory} and need help to get them straight.",
            f"Some documents in {place.directory} have drifted apart.",
        ),
        steps=[job.step for job in jobs],
        files=files,
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
    )


def _lines(rng: random.Random, count: int = 14) -> list[str]:
    return [f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}" for _ in range(count)]


def _edited(rng: random.Random, lines: list[str]) -> list[str]:
    """Some lines replaced and one added, away from each other."""
    changed = list(lines)
    changed[2] = f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}"
    del changed[10]
    changed.insert(7, f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}")
    return changed


def _trees(rng: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """An old and a new tree: two files changed, one added, one removed, the rest equal."""
    names = words.file_names(rng, 6, (".txt", ".md"))
    old = {file: _lines(rng) for file in names[:5]}
    new = {file: _edited(rng, old[file]) for file in names[:2]} | {file: old[file] for file in names[2:4]}
    return old, new | {names[5]: _lines(rng, 5)}


def _placed(place: Place, folder: str, tree: Tree) -> tuple[File, ...]:
    return tuple(text_file(place, f"{folder}/{file}", _text(lines)) for file, lines in tree.items())


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _bytes(tree: Tree) -> dict[str, bytes]:
    return {file: _text(lines).encode() for file, lines in tree.items()}


def _patch(old: Tree, new: Tree) -> str:
    parts: list[str] = []
    for file in sorted(set(old) & set(new)):
        before, after = (_text(tree[file]).splitlines(keepends=True) for tree in (old, new))
        parts += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(parts)


def _make_patch(rng: random.Random, place: Place, stem: str) -> Job:
    old, new = _trees(rng)
    before, after, patch = f"{stem}-old", f"{stem}-new", f"{stem}.patch"
    target = f"{place.directory}/{patch}"
    command = f"diff -ruN {before} {after} > {patch}"
    a, b = f"{place.directory}/{before}", f"{place.directory}/{after}"
    step = Step(
        says=(
            f"Write a unified diff to {target} that turns {a} into {b}, with added and removed files, such that `patch -p1` inside a copy of {a} applies it.",
            f"Make the patch {target} (unified format) for the way from {a} to {b}, including files that come and go. I'll apply it with `patch -p1` from within a copy of {a}.",
            f"Someone who has only {a} wants to get to {b}: put a unified diff into {target} that `patch -p1` can apply inside their copy, new and deleted files included.",
        ),
        thought="Recursive, unified, and -N so that missing files count as empty.",
        command=command,
        checks=(_patch_works(target, old, new),),
        mistakes=(
            slip(
                "analysis_error",
                f"diff -ruN {after} {before} > {patch}",
                "The new version first, then the old one that it is compared with.",
            ),
            slip("requirement_violation", f"diff -ru {before} {after} > {patch}", "diff -ru covers both directories."),
            slip("command_error", f"diff -rqN {before} {after} > {patch}", "q leaves out what isn't needed."),
            misplaced(command, patch),
        ),
    )
    return Job(step=step, files=(*_placed(place, before, old), *_placed(place, after, new)))


def _patch_works(path: str, old: Tree, new: Tree) -> str:
    return check(
        path,
        "applies",
        "import shutil",
        "import tempfile",
        "",
        f"before = { {file: _text(lines) for file, lines in old.items()}!r}",
        f"after = { {file: _text(lines) for file, lines in new.items()}!r}",
        "read_bytes(path)",
        "folder = tempfile.mkdtemp()",
        "try:",
        "    os.chmod(folder, 0o777)",
        "    for name, text in before.items():",
        "        Path(folder, name).write_text(text)",
        "        os.chmod(os.path.join(folder, name), 0o666)",
        "    run('patch', '-p1', '-s', '-f', '-i', path, cwd=folder)",
        "    found = {name: read_text(os.path.join(folder, name)) for name in os.listdir(folder)}",
        "finally:",
        "    shutil.rmtree(folder)",
        "assert found == after, f'{path} gives {sorted(found)} with other contents'",
    )


def _apply(rng: random.Random, place: Place, stem: str) -> Job:
    old = {file: _lines(rng) for file in words.file_names(rng, 3, (".txt", ".md"))}
    new = {file: _edited(rng, lines) if index < 2 else lines for index, (file, lines) in enumerate(old.items())}
    folder, patch = f"{place.directory}/{stem}", f"{place.directory}/{stem}-change.patch"
    step = Step(
        says=(
            f"Apply the patch {patch} to the documents in {folder} (its paths begin with a/ and b/).",
            f"Bring {folder} up to date with {patch}, a unified diff with a/ and b/ in front of the names.",
            f"The corrections in {patch} still have to go into {folder}. It is an ordinary unified diff, names with a/ and b/.",
        ),
        thought="The names have a/ and b/ in front, so one component has to be stripped.",
        command=f"patch -d {stem} -p1 < {stem}-change.patch",
        checks=(tree_holds(folder, _bytes(new)), tree_is(folder, list(new))),
        mistakes=_wrong_ways(stem, f"{stem}-change.patch", ""),
    )
    return Job(
        step=step, files=(*_placed(place, stem, old), text_file(place, f"{stem}-change.patch", _patch(old, new)))
    )


def _take_back(rng: random.Random, place: Place, stem: str) -> Job:
    old = {file: _lines(rng) for file in words.file_names(rng, 3, (".txt", ".md"))}
    new = {file: _edited(rng, lines) if index < 2 else lines for index, (file, lines) in enumerate(old.items())}
    folder, patch = f"{place.directory}/{stem}", f"{place.directory}/{stem}-applied.patch"
    step = Step(
        says=(
            f"Undo the patch {patch} in {folder}, where it has been applied, so that the documents are as before it.",
            f"Take the patch {patch} back out of {folder}: it was applied there and should be undone.",
            f"Revert {folder} to what it was before somebody applied {patch} to it.",
        ),
        thought="patch -R applies it backwards.",
        command=f"patch -R -d {stem} -p1 < {stem}-applied.patch",
        checks=(tree_holds(folder, _bytes(old)), tree_is(folder, list(old))),
        mistakes=_wrong_ways(stem, f"{stem}-applied.patch", "-R "),
    )
    return Job(
        step=step, files=(*_placed(place, stem, new), text_file(place, f"{stem}-applied.patch", _patch(old, new)))
    )


def _wrong_ways(folder: str, patch: str, reverse: str) -> tuple[Mistake, ...]:
    clean = f"find {folder} -name '*.rej' -delete -o -name '*.orig' -delete"
    return (
        slip(
            "command_error",
            f"patch {reverse}-f -d {folder} -p0 < {patch}",
            "The names in the patch are taken as they are.",
            clean,
        ),
        slip(
            "verification_failure",
            f"patch {reverse}--dry-run -d {folder} -p1 < {patch}",
            "patch reports no problem with any of the files.",
        ),
        slip(
            "requirement_violation",
            f"cp -r {folder} {folder}.fixed && patch {reverse}-d {folder}.fixed -p1 < {patch}",
            "I work on a copy, that is safer.",
            f"rm -r {folder}.fixed",
        ),
    )


def _differences(rng: random.Random, place: Place, stem: str) -> Job:
    old, new = _trees(rng)
    before, after, file = f"{stem}-before", f"{stem}-after", f"{stem}-differences.txt"
    kinds = {path: "added" for path in new if path not in old} | {path: "removed" for path in old if path not in new}
    kinds |= {path: "changed" for path in old if path in new and old[path] != new[path]}
    a, b, target = (f"{place.directory}/{part}" for part in (before, after, file))
    listing = f"diff -rq {before} {after}"
    words_for = '/^Files/ {n = $2; sub(/.*\\//, "", n); print n, "changed"}'
    only = f'/^Only in {before}/ {{print $4, "removed"}} /^Only in {after}/ {{print $4, "added"}}'
    step = report(
        place,
        file,
        [f"{path} {kinds[path]}" for path in sorted(kinds)],
        f"{listing} | awk '{words_for} {only}' | LC_ALL=C sort",
        says=(
            f"Compare {a} with {b} and write to {target} one line for each file that is different: its name, one blank, and `added`, `removed` or `changed` (from the first to the second); sorted by byte value, equal files left out.",
            f"List in {target} what happened between {a} and {b}: lines of a file name and one of `added`, `removed`, `changed`, in the order of LC_ALL=C sort, without the files that are the same.",
            f"What is different in {b} compared with {a}? Lines like `notes.md changed` (or `added`, or `removed`), sorted with LC_ALL=C, go to {target}; leave out what is equal.",
        ),
        thought="diff -rq names changed files and those on one side only; awk puts it into words.",
        slips=(
            ("requirement_violation", f"{listing} | LC_ALL=C sort", "diff -rq says it in words already."),
            (
                "analysis_error",
                f"{listing} | awk '{words_for}' | LC_ALL=C sort",
                "Files that differ are those that diff reports as differing.",
            ),
        ),
    )
    return Job(step=step, files=(*_placed(place, before, old), *_placed(place, after, new)))


def _merge(rng: random.Random, place: Place, stem: str) -> Job:
    base = _lines(rng, 18)
    mine, theirs = list(base), list(base)
    mine[1] = merged_1 = f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}"
    mine.append(merged_end := f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}")
    theirs[8] = merged_8 = f"{words.phrase(rng, 2, 5)} {words.token(rng, 4)}"
    merged = [base[0], merged_1, *base[2:8], merged_8, *base[9:], merged_end]
    people = words.distinct(rng, words.PEOPLE, 2)
    a, o, b = f"{stem}-{people[0]}.txt", f"{stem}-base.txt", f"{stem}-{people[1]}.txt"
    file = f"{stem}-merged.txt"
    at, target = place.directory, f"{place.directory}/{file}"
    step = report(
        place,
        file,
        merged,
        f"diff3 -m {a} {o} {b}",
        says=(
            f"Merge {at}/{a} and {at}/{b}, both made from {at}/{o}, into {target}: all changes of both sides (they don't overlap).",
            f"Put together what {people[0].title()} ({at}/{a}) and {people[1].title()} ({at}/{b}) changed in {at}/{o}, and save it as {target}; the changes are in different places.",
            f"{people[0].title()} and {people[1].title()} both edited {at}/{o}, the results are {at}/{a} and {at}/{b}. I need one text with the changes of both in {target}; they don't get in each other's way.",
        ),
        thought="A three-way merge with the common ancestor in the middle.",
        slips=(
            ("command_error", f"diff3 {a} {o} {b}", "diff3 merges three files."),
            ("analysis_error", f"diff3 -m {o} {a} {b}", "The common ancestor comes first."),
            ("requirement_violation", f"sort -mu {a} {b}", "A merge without double lines."),
        ),
    )
    return Job(
        step=step,
        files=tuple(text_file(place, part, _text(lines)) for part, lines in ((a, mine), (o, base), (b, theirs))),
    )
