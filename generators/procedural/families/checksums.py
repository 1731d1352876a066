"""A delivery and its checksum manifest: find what was corrupted, move it aside, find doubles, write a fresh manifest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, present, tree_holds, tree_is, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "checksums"
category = "security"
tools: tuple[str, ...] = ("awk", "grep", "sha256sum", "sort", "uniq", "xargs")
depths = range(1, 6)


@dataclass
class Scene:
    """The delivery: content by file name as it stands, and what is wrong with it."""

    rng: random.Random
    at: str
    folder: str
    aside: str
    contents: dict[str, bytes]
    damaged: list[str]
    doubles: list[str]
    manifest: str
    names: list[str]
    outputs: list[str] = field(default_factory=list)
    report: str = ""
    """Where the list of damaged files was written, if it was asked for."""

    def answer(self) -> str:
        self.outputs.append(self.names.pop())
        return self.outputs[-1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _corrupted(scene: Scene) -> Step:
    out, folder = scene.answer(), scene.folder
    scene.report = out
    verify = f"(cd {folder} && sha256sum -c ../{scene.manifest} 2>/dev/null)"
    return Step(
        says=(
            f"Check the files in {scene.at}/{folder} against {scene.at}/{scene.manifest} (SHA-256) and write the names of those that do not match, as the "
            f"manifest spells them, sorted in byte order and one per line, to {scene.at}/{out}.",
            f"Verify {scene.at}/{folder} with the SHA-256 manifest {scene.manifest}. The names that fail, sorted, one a line and nothing else, belong in "
            f"{scene.at}/{out}.",
            f"Something in {scene.at}/{folder} got damaged on the way. {scene.manifest} has the SHA-256 sums it should have; list the bad file names, sorted, "
            f"in {scene.at}/{out}.",
        ),
        thought="sha256sum -c marks the failed ones; the names are relative to the delivery.",
        command=f"{verify} | sed -n 's/: FAILED$//p' | LC_ALL=C sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", sorted(scene.damaged)),),
        mistakes=(
            slip(
                "analysis_error",
                f"sha256sum -c {scene.manifest} 2>/dev/null | sed -n 's/: FAILED$//p' | sort > {out}",
                "The manifest lies here.",
            ),
            slip(
                "requirement_violation", f"{verify} | grep FAILED | sort > {out}", "The report names the failed files."
            ),
            slip(
                "command_error",
                f"{verify} | sed -n 's/: OK$//p' | LC_ALL=C sort > {out}",
                "Take the names out of the report.",
            ),
        ),
        truth=("\n".join(sorted(scene.damaged)),),
    )


def _quarantine(scene: Scene) -> Step:
    folder, aside = scene.folder, scene.aside
    kept = {file: data for file, data in scene.contents.items() if file not in scene.damaged}
    contents, scene.contents = scene.contents, kept
    verify = f"(cd {folder} && sha256sum -c ../{scene.manifest} 2>/dev/null) | sed -n 's/: FAILED$//p'"
    source = f"cat {scene.report}" if scene.report else verify
    some = min(scene.damaged)
    return Step(
        says=(
            f"Create the directory {scene.at}/{aside} and move the files of {scene.at}/{folder} that do not match {scene.at}/{scene.manifest} there.",
            f"Move whatever fails the check against {scene.manifest} out of {scene.at}/{folder} into a new directory {scene.at}/{aside}, names unchanged.",
            f"The files in {scene.at}/{folder} that disagree with {scene.manifest} should be put aside: into {scene.at}/{aside}, which isn't there yet.",
        ),
        thought="Make the directory first, then move exactly the failed names.",
        command=f"mkdir {aside} && {source} | xargs -I{{}} mv {folder}/{{}} {aside}/",
        checks=(
            tree_is(f"{scene.at}/{aside}", scene.damaged),
            tree_is(f"{scene.at}/{folder}", list(kept)),
            tree_holds(f"{scene.at}/{aside}", {file: contents[file] for file in scene.damaged}),
        ),
        mistakes=(
            slip(
                "requirement_violation",
                f"mkdir {aside} && {source} | xargs -I{{}} cp {folder}/{{}} {aside}/",
                "They are in the new directory then.",
                f"rm -r {aside}",
            ),
            slip(
                "command_error",
                f"{source} | xargs -I{{}} mv {folder}/{{}} {aside}",
                "mv creates the directory.",
                f"mv {aside} {folder}/{max(scene.damaged)}",
                *_recreate(scene, contents),
            ),
            slip(
                "verification_failure",
                f"mkdir {aside} && mv {folder}/{some} {aside}/",
                "The damaged file is out of the way.",
                f"mv {aside}/{some} {folder}/",
                f"rmdir {aside}",
            ),
        ),
    )


def _recreate(scene: Scene, contents: dict[str, bytes]) -> tuple[str, ...]:
    """Commands that write the damaged files again (all but the last, which a careless `mv` kept)."""
    return tuple(f"printf %s {_quoted(contents[file])} > {scene.folder}/{file}" for file in sorted(scene.damaged)[:-1])


def _quoted(data: bytes) -> str:
    return "'" + data.decode() + "'"


def _manifest(scene: Scene) -> Step:
    out, folder = scene.answer(), scene.folder
    lines = [f"{_digest(data)}  {file}" for file, data in sorted(scene.contents.items())]
    return Step(
        says=(
            f"Write a SHA-256 manifest of the files that are then in {scene.at}/{folder} to {scene.at}/{out} in the format of sha256sum (digest, two spaces, "
            "name), with bare file names and sorted by name in byte order.",
            f"Afterwards make a fresh manifest of everything in {scene.at}/{folder}: lines as sha256sum prints them, names without directory, in order of the "
            f"names, saved as {scene.at}/{out}.",
            f"I also want a current sha256sum listing of {scene.at}/{folder} in {scene.at}/{out}, file names only (no path in front), by name from a to z.",
        ),
        thought="Run it inside the directory so that the names stay bare; the shell's glob is sorted.",
        command=f"(cd {folder} && LC_ALL=C && sha256sum *) > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip("requirement_violation", f"sha256sum {folder}/* > {out}", "The path tells where the files are."),
            slip("analysis_error", f"cp {scene.manifest} {out}", "There is a manifest already."),
            slip("command_error", f"(cd {folder} && sha1sum *) > {out}", "The sums tool prints digest and name."),
        ),
        truth=tuple(_digest(scene.contents[file]) for file in scene.damaged if file in scene.contents),
    )


def _twins(scene: Scene) -> Step:
    out, folder = scene.answer(), scene.folder
    same = sorted(file for file in scene.doubles if file in scene.contents)
    sums = f"sha256sum {folder}/*"
    return Step(
        says=(
            f"List the names of all files in {scene.at}/{folder} whose content is identical to that of another file there, sorted in byte order, one per line, "
            f"in {scene.at}/{out}.",
            f"Find files with the same content within {scene.at}/{folder}. All names involved, without path, sorted, one per line: {scene.at}/{out}.",
            f"Some files in {scene.at}/{folder} are copies of each other. I'd like every such file name (originals too, no path), sorted, in {scene.at}/{out}.",
        ),
        thought="Equal digests mean equal content; uniq -D on the digest keeps all members of such a group.",
        command=f"{sums} | sort | uniq -w64 -D | awk '{{print $2}}' | xargs -n1 basename | LC_ALL=C sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", same),),
        mistakes=(
            slip(
                "analysis_error",
                f"{sums} | sort | uniq -w64 -d | awk '{{print $2}}' | xargs -n1 basename | sort > {out}",
                "-d shows repeats.",
            ),
            slip(
                "command_error",
                f"{sums} | sort | uniq -D | awk '{{print $2}}' | xargs -rn1 basename | sort > {out}",
                "uniq compares the lines.",
            ),
            slip(
                "requirement_violation",
                f"{sums} | sort | uniq -w64 -D | awk '{{print $2}}' | sort > {out}",
                "The paths are clearer.",
            ),
        ),
    )


def _lookup(scene: Scene) -> Step:
    out, folder = scene.answer(), scene.folder
    wanted = scene.rng.choice(sorted(file for file in scene.contents if file not in scene.doubles))
    digest = _digest(scene.contents[wanted])
    start = digest[:12]
    return Step(
        says=(
            f"Find the file in {scene.at}/{folder} whose SHA-256 digest begins with {start} and write its bare name to {scene.at}/{out}.",
            f"Which file in {scene.at}/{folder} has a SHA-256 sum starting {start}? Just the file name, no path, in {scene.at}/{out}.",
            f"A colleague quoted the SHA-256 {start}... for one of the files in {scene.at}/{folder}; note its name (only the name) in {scene.at}/{out}.",
        ),
        thought="Hash them all and match the start of the digest.",
        command=f"(cd {folder} && sha256sum *) | awk '/^{start}/ {{print $2}}' > {out}",
        checks=(lines_are(f"{scene.at}/{out}", [wanted]),),
        mistakes=(
            slip(
                "requirement_violation",
                f"sha256sum {folder}/* | awk '/^{start}/ {{print $2}}' > {out}",
                "That prints the file.",
            ),
            slip(
                "command_error",
                f"(cd {folder} && md5sum *) | awk '/^{start}/ {{print $2}}' > {out}",
                "Any checksum tool shows it.",
            ),
            slip("hallucination", f"sha256sum --find {start} {folder}/* > {out}", "sha256sum can search for a digest."),
        ),
    )


_JOBS: tuple[Callable[[Scene], Step], ...] = (_corrupted, _lookup, _quarantine, _twins, _manifest)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Jobs on one delivery, in an order in which each sees what the one before left."""
    files = words.file_names(rng, rng.randint(9, 13), (".dat", ".txt", ".bin", ".img"))
    contents = {file: words.prose(rng, rng.randint(2, 5)).encode() for file in files}
    doubles = files[:3]
    contents |= dict.fromkeys(doubles, contents[doubles[0]])
    damaged = rng.sample(files[3:], rng.randint(2, 3))
    folder, aside = words.distinct(rng, words.AREAS, 2)
    manifest = f"{rng.choice(words.STEMS)}.sha256"
    listed = "".join(f"{_digest(data)}  {file}\n" for file, data in sorted(contents.items()))
    contents |= {file: contents[file].replace(b"e", b"o", 1) + b"\n" for file in damaged}
    names = [f"{stem}.{rng.choice(('txt', 'lst', 'out'))}" for stem in words.distinct(rng, words.STEMS, 5)]
    chosen = sorted(rng.sample(range(len(_JOBS)), depth))
    scene = Scene(rng, place.directory, folder, aside, dict(contents), damaged, doubles, manifest, names)
    steps = [_JOBS[index](scene) for index in chosen]
    inputs = [text_file(place, f"{folder}/{file}", data.decode()) for file, data in contents.items()]
    inputs.append(text_file(place, manifest, listed))
    return assemble(
        family=name,
        title="Check a delivery",
        place=place,
        openings=(
            f"The delivery in {place.directory}/{folder} came with a manifest, {manifest}, one directory up.",
            f"A delivery arrived in {place.directory}/{folder}; its manifest is {place.directory}/{manifest}.",
            f"We received some files, {place.directory}/{folder}, and a manifest with them ({manifest} in {place.directory}).",
        ),
        steps=steps,
        files=inputs,
        initial_checks=(
            present(place.directory, [manifest, *(f"{folder}/{file}" for file in contents)]),
            *(absent(f"{place.directory}/{out}") for out in (aside, *scene.outputs)),
        ),
        guards=(unchanged(f"{place.directory}/{manifest}", listed.encode()),),
    )
