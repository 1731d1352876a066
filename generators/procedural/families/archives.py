"""Archives: unpack, take one file out, list, pack again in another format, compress a folder's files one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import (
    absent,
    archive_holds,
    bytes_are,
    check,
    lines_are,
    present,
    starts_with,
    tree_holds,
    tree_is,
)
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "archives"
category = "archiving"
tools: tuple[str, ...] = ("gzip", "tar", "unzip", "xz", "zip")
depths = range(1, 6)

_XZ_MAGIC = b"\xfd7zXZ\x00"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class Scene:
    """A tarball with one top directory, and a zip file beside it."""

    rng: random.Random
    at: str
    tarball: str
    top: str
    contents: dict[str, bytes]
    """By path below the top directory, which has the subdirectories of `folders`."""
    folders: list[str]
    zipped: str
    sheets: dict[str, bytes]
    names: list[str]
    targets: list[str]
    outputs: list[str] = field(default_factory=list)

    def output(self, output: str) -> str:
        self.outputs.append(output)
        return output


def _unpack(scene: Scene) -> Step:
    target = scene.output(scene.targets.pop())
    path = f"{scene.at}/{target}"
    return Step(
        says=(
            f"Create the directory {path} and unpack {scene.at}/{scene.tarball} into it without the archive's top directory {scene.top}.",
            f"Unpack {scene.tarball} into a new directory {path}. The leading directory {scene.top} of the archive should not appear there.",
            f"I need what is inside {scene.tarball} in {path} (make it), directly, not one level down in {scene.top}.",
        ),
        thought="tar can strip the first component and unpack elsewhere.",
        command=f"mkdir {target} && tar -xzf {scene.tarball} -C {target} --strip-components=1",
        checks=(tree_is(path, list(scene.contents)), tree_holds(path, scene.contents)),
        mistakes=(
            slip(
                "requirement_violation",
                f"mkdir {target} && tar -xzf {scene.tarball} -C {target}",
                "-C puts it into the directory.",
                f"rm -r {target}",
            ),
            slip(
                "command_error",
                f"tar -xzf {scene.tarball} -C {target} --strip-components=1",
                "tar makes the directory it needs.",
            ),
            slip(
                "analysis_error",
                f"mkdir {target} && tar -xzf {scene.tarball} -C {target} --strip-components=2",
                "Two levels are in the way.",
                f"rm -r {target}",
            ),
        ),
    )


def _single(scene: Scene) -> Step:
    member = scene.rng.choice(sorted(path for path in scene.contents if "/" in path))
    out = scene.output(scene.names.pop())
    data = scene.contents[member]
    return Step(
        says=(
            f"Write the content of {scene.top}/{member} from {scene.at}/{scene.tarball} to {scene.at}/{out}.",
            f"Get just the file {scene.top}/{member} out of {scene.tarball} and save its content as {scene.at}/{out}.",
            f"One file of {scene.tarball} interests me, {scene.top}/{member}; put it at {scene.at}/{out}.",
        ),
        thought="tar -O writes one member to standard output, so that I can name the file.",
        command=f"tar -xzOf {scene.tarball} {scene.top}/{member} > {out}",
        checks=(bytes_are(f"{scene.at}/{out}", data),),
        mistakes=(
            slip("command_error", f"tar -xzOf {scene.tarball} {member} > {out}", "That is the path of the file."),
            slip(
                "verification_failure",
                f"tar -xzf {scene.tarball} {scene.top}/{member}",
                "The file has been extracted.",
                f"rm -r {scene.top}",
            ),
            slip("analysis_error", f"tar -tzf {scene.tarball} {scene.top}/{member} > {out}", "t takes the file."),
        ),
    )


def _listing(scene: Scene) -> Step:
    out = scene.output(scene.names.pop())
    lines = sorted(f"{scene.top}/{path}" for path in scene.contents)
    return Step(
        says=(
            f"List the files in {scene.at}/{scene.tarball} without directories, one path per line as stored, sorted in byte order, in {scene.at}/{out}.",
            f"Write the sorted paths of all files in {scene.tarball}, as they stand in the archive and leaving out directory entries, to {scene.at}/{out}.",
            f"What is in {scene.tarball}? The stored path of every file (no directories) on a line of its own, sorted, in {scene.at}/{out}.",
        ),
        thought="Directory entries end with a slash in the listing, so they are easily dropped.",
        command=f"tar -tzf {scene.tarball} | grep -v '/$' | LC_ALL=C sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "requirement_violation", f"tar -tzf {scene.tarball} | LC_ALL=C sort > {out}", "tar lists what is in it."
            ),
            slip(
                "command_error",
                f"tar -tvzf {scene.tarball} | grep -v '/$' | LC_ALL=C sort > {out}",
                "v shows the names.",
            ),
            slip(
                "hallucination",
                f"tar --list-files {scene.tarball} | LC_ALL=C sort > {out}",
                "tar has an option for files only.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _convert(scene: Scene) -> Step:
    out = scene.output(f"{scene.zipped.removesuffix('.zip')}.tar.xz")
    names = " ".join(scene.sheets)
    work = f'd=$(mktemp -d) && unzip -q {scene.zipped} -d "$d"'
    members = " ".join(f"$d/{sheet}" for sheet in scene.sheets)
    return Step(
        says=(
            f"Pack the files of {scene.at}/{scene.zipped} into an xz-compressed tar archive {scene.at}/{out} with the same names, no directories in front.",
            f"Turn {scene.zipped} into a .tar.xz: {scene.at}/{out} should hold the same files under the same bare names.",
            f"The others can't open zip files. Give them {scene.at}/{out}, a tar compressed with xz, with all that {scene.zipped} has, names unchanged.",
        ),
        thought="Unpack to a scratch directory and pack from inside it, so that names stay bare.",
        command=f'{work} && tar -cJf {out} -C "$d" {names} && rm -r "$d"',
        checks=(archive_holds(f"{scene.at}/{out}", scene.sheets), starts_with(f"{scene.at}/{out}", _XZ_MAGIC, "xz")),
        mistakes=(
            slip("command_error", f'{work} && tar -czf {out} -C "$d" {names}', "tar compresses as the file name says."),
            slip(
                "requirement_violation",
                f"{work} && tar -cJf {out} {members}",
                "The files are packed from where they are.",
            ),
            slip("analysis_error", f"tar -cJf {out} {scene.zipped}", "The archive goes into the new format."),
        ),
    )


def _repack(scene: Scene) -> Step:
    folder = scene.rng.choice(scene.folders)
    out = scene.output(f"{folder}.tar.gz")
    members = {path: data for path, data in scene.contents.items() if path.startswith(f"{folder}/")}
    work = f'd=$(mktemp -d) && tar -xzf {scene.tarball} -C "$d"'
    return Step(
        says=(
            f"Make a gzip-compressed tar archive {scene.at}/{out} of only the files below {scene.top}/{folder} of {scene.at}/{scene.tarball}, with paths that "
            f"begin with {folder}/.",
            f"Split off one part: {scene.at}/{out} (tar with gzip) gets what {scene.tarball} has below {scene.top}/{folder}, and its paths start at {folder}/.",
            f"From {scene.tarball} I only pass on {scene.top}/{folder}: pack it as {scene.at}/{out}, gzip again, with {folder}/ as the top directory.",
        ),
        thought="Unpack to a scratch directory and pack the one folder from the level above it.",
        command=f'{work} && tar -czf {out} -C "$d/{scene.top}" {folder} && rm -r "$d"',
        checks=(archive_holds(f"{scene.at}/{out}", members), starts_with(f"{scene.at}/{out}", _GZIP_MAGIC, "gzip")),
        mistakes=(
            slip(
                "requirement_violation",
                f'{work} && tar -czf {out} -C "$d" {scene.top}/{folder}',
                "The stored paths are kept.",
            ),
            slip(
                "command_error",
                f'{work} && tar -cf {out} -C "$d/{scene.top}" {folder}',
                "The .gz in the name asks for compression.",
            ),
            slip("analysis_error", f"cp {scene.tarball} {out}", "The whole archive contains that part."),
        ),
    )


def _squeeze(scene: Scene) -> Step:
    logs = [path for path in scene.sheets if path.endswith(".csv")]
    folder = scene.output(scene.targets.pop())
    path = f"{scene.at}/{folder}"
    packed = [f"{log}.gz" for log in logs]
    holds = (
        "import gzip\nimport hashlib\n\n"
        "expected = {\n" + "".join(f"    {log + '.gz'!r}: {scene.sheets[log]!r},\n" for log in logs) + "}\n"
        "for name, text in expected.items():\n"
        "    data = read_bytes(f'{path}/{name}')\n"
        "    try:\n"
        "        content = gzip.decompress(data)\n"
        "    except Exception as error:\n"
        "        raise AssertionError(f'{name} is not gzip data: {error}') from None\n"
        "    assert content == text, f'{name} holds something else'"
    )
    return Step(
        says=(
            f"Unpack the .csv files of {scene.at}/{scene.zipped} into a new directory {path} and compress each with gzip; only the .gz files remain there.",
            f"Put the .csv files from {scene.zipped} into a new directory {path}, every one gzip-compressed for itself (NAME.csv.gz), and nothing else.",
            f"In {path}, not there yet, I'd like each .csv of {scene.zipped} as its own NAME.csv.gz and no other file.",
        ),
        thought="unzip takes a pattern, and gzip replaces each file by its compressed form.",
        command=f"unzip -q {scene.zipped} '*.csv' -d {folder} && gzip {folder}/*.csv",
        checks=(tree_is(path, packed), check(path, "compressed", holds)),
        mistakes=(
            slip(
                "requirement_violation",
                f"unzip -q {scene.zipped} '*.csv' -d {folder} && gzip -k {folder}/*.csv",
                "Keeping the originals is safer.",
                f"rm -r {folder}",
            ),
            slip(
                "analysis_error",
                f"unzip -q {scene.zipped} -d {folder} && gzip {folder}/*",
                "All the files are meant.",
                f"rm -r {folder}",
            ),
            slip(
                "verification_failure",
                f"unzip -q {scene.zipped} '*.csv' -d {folder}",
                "The files come out of a compressed archive.",
                f"rm -r {folder}",
            ),
        ),
    )


_JOBS: tuple[Callable[[Scene], Step], ...] = (_unpack, _single, _listing, _convert, _repack, _squeeze)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Different jobs with two archives, which stay as they are."""
    top = f"{rng.choice(words.PROJECTS)}-{rng.randint(1, 9)}.{rng.randint(0, 20)}"
    *folders, first, second = words.distinct(rng, words.AREAS, 4)
    papers = words.file_names(rng, 8, (".txt", ".md", ".conf"))
    contents = {
        f"{folders[n % 2]}/{paper}" if n < 6 else paper: words.prose(rng, 4).encode() for n, paper in enumerate(papers)
    }
    sheets = {
        file: words.prose(rng, 3).encode()
        for file in [*words.file_names(rng, 3, (".csv",)), *words.file_names(rng, 2, (".txt",))]
    }
    outputs = [f"{stem}.out" for stem in words.distinct(rng, words.STEMS, 3)]
    tarball, zipped = f"{top}.tar.gz", f"{rng.choice(words.STEMS)}-{words.token(rng, 4)}.zip"
    scene = Scene(rng, place.directory, tarball, top, contents, folders, zipped, sheets, outputs, [first, second])
    steps = [job(scene) for job in rng.sample(_JOBS, depth)]
    files = [text_file(place, f"{top}/{path}", data.decode()) for path, data in contents.items()]
    files += [text_file(place, file, data.decode()) for file, data in sheets.items()]
    stamp = f"{words.day(rng)} 12:00:00"
    return assemble(
        family=name,
        title="Handle archives",
        place=place,
        openings=(
            f"The directory {place.directory} holds the archives {tarball} and {zipped}; keep both.",
            f"There are two archives in {place.directory}, {tarball} and {zipped}. They should still be there afterwards.",
            f"I left {tarball} and {zipped} in {place.directory} for you (don't throw them away).",
        ),
        steps=steps,
        files=files,
        setup=(
            f"find . -exec touch -d '{stamp}' {{}} +",
            f"tar --sort=name --mtime='{stamp}' -cf - {top} | gzip -n > {tarball}",
            f"zip -qX {zipped} {' '.join(sheets)}",
            f"rm -r {top} {' '.join(sheets)}",
        ),
        initial_checks=(
            present(place.directory, [tarball, zipped]),
            *(absent(f"{place.directory}/{out}") for out in scene.outputs),
        ),
        guards=(present(place.directory, [tarball, zipped]),),
    )
