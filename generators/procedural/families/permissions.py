"""Permission bits of a small project tree: scripts, secrets, shared folders, whole subtrees."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, modes_are, present
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "permissions"
category = "file operations"
tools: tuple[str, ...] = ("chmod", "find", "stat")
depths = range(1, 6)


@dataclass(frozen=True)
class Scene:
    """The tree: relative path of each file -> its mode at the start."""

    at: str
    scripts: list[str]
    secrets: list[str]
    papers: list[str]
    folders: list[str]
    shared: str
    report: str
    modes: dict[str, int]


def _scene(rng: random.Random, place: Place) -> Scene:
    stems = words.distinct(rng, words.STEMS, 14)
    top = words.distinct(rng, words.AREAS, 4)
    scripts = [f"{top[0]}/{stem}.sh" for stem in stems[: rng.randint(3, 5)]]
    secrets = [f"{top[1]}/{stem}{rng.choice(('.key', '.pem', '.token'))}" for stem in stems[5:8]]
    folders = [top[2], f"{top[2]}/{rng.choice(words.CITIES)}", f"{top[2]}/{rng.choice(words.TEAMS)}"]
    papers = [f"{rng.choice(folders)}/{stem}.md" for stem in stems[8:13]]
    modes = {path: rng.choice((0o644, 0o600, 0o640)) for path in scripts}
    modes |= {path: rng.choice((0o644, 0o664, 0o666)) for path in secrets}
    modes |= {path: rng.choice((0o666, 0o606, 0o662)) for path in papers[:2]}
    modes |= {path: rng.choice((0o644, 0o600, 0o664)) for path in papers[2:]}
    return Scene(place.directory, scripts, secrets, papers, folders, top[3], f"{stems[13]}.txt", modes)


def _runnable(scene: Scene) -> Step:
    folder = scene.scripts[0].split("/")[0]
    path = f"{scene.at}/{folder}"
    return Step(
        says=(
            f"Give every .sh file in {path} the mode 755; leave other files there alone.",
            f"Make all the .sh scripts in {path} executable: everybody may read and run them, only the owner may write (755).",
            f"None of the .sh scripts in {path} can be started at the moment; they should all be rwxr-xr-x.",
        ),
        thought="The scripts need the execute bit, and 755 is what was asked for.",
        command=f"chmod 755 {folder}/*.sh",
        checks=(modes_are(path, {script.split("/")[1]: 0o755 for script in scene.scripts} | {"README": 0o644}),),
        mistakes=(
            slip(
                "requirement_violation",
                f"chmod 777 {folder}/*.sh",
                "Opening them fully makes sure that everybody can run them.",
            ),
            slip("command_error", f"chmod -x {folder}/*.sh", "A dash introduces options, so -x sets the execute bit."),
            slip("analysis_error", f"chmod 755 {scene.scripts[0]}", "Only the first script seems to be meant."),
        ),
    )


def _private(scene: Scene) -> Step:
    folder = scene.secrets[0].split("/")[0]
    path = f"{scene.at}/{folder}"
    wanted = {secret.split("/")[1]: 0o600 for secret in scene.secrets}
    return Step(
        says=(
            f"Set the directory {path} to mode 700 and every file in it to mode 600.",
            f"Lock down {path}: the directory itself should be 700 and all the files in it 600.",
            f"Nobody but the owner should get at {path}, so 700 on the directory and 600 on each file in it, please.",
        ),
        thought="Directory and files need different bits, so I do the files first and the directory after.",
        command=f"chmod 600 {folder}/* && chmod 700 {folder}",
        checks=(modes_are(path, {".": 0o700} | wanted),),
        mistakes=(
            slip(
                "analysis_error",
                f"chmod -R 600 {folder}",
                "One recursive 600 closes directory and files together.",
                f"chmod u+rwx {folder}",
            ),
            slip("requirement_violation", f"chmod -R 700 {folder}", "700 for all of it keeps everybody else out."),
            slip(
                "verification_failure",
                f"chmod 600 {folder}/*",
                "The files are closed, which is what protects the secrets.",
            ),
        ),
    )


def _shared(scene: Scene) -> Step:
    path = f"{scene.at}/{scene.shared}"
    return Step(
        says=(
            f"Create the directory {path} with mode 2770.",
            f"Add a new directory {path} for the group to share: setgid, full access for owner and group, none for others (2770).",
            f"We need a fresh team folder {path}; new files in it should inherit the group, so make it rwxrws--- (2770).",
        ),
        thought="A directory for a group needs the setgid bit, and mkdir -m sets all bits at once.",
        command=f"mkdir -m 2770 {scene.shared}",
        checks=(modes_are(path, {".": 0o2770}),),
        mistakes=(
            slip(
                "requirement_violation",
                f"mkdir -m 770 {scene.shared}",
                "Owner and group get all rights with 770.",
                f"rmdir {scene.shared}",
            ),
            slip(
                "command_error",
                f"mkdir {scene.shared} -m 4770",
                "The leading 4 is the bit that passes the group on.",
                f"rmdir {scene.shared}",
            ),
            slip(
                "verification_failure",
                f"mkdir -p {scene.shared}",
                "The directory is there now, the default bits will do.",
                f"rmdir {scene.shared}",
            ),
        ),
    )


def _report(scene: Scene) -> Step:
    path = f"{scene.at}/{scene.report}"
    top = scene.folders[0]
    found = sorted(paper for paper in scene.papers if scene.modes[paper] & 0o002)
    listing = [paper.removeprefix(top + "/") for paper in found]
    return Step(
        says=(
            f"Before anything changes under {scene.at}/{top}, list all regular files below it that others may write, one path per line "
            f"relative to {scene.at}/{top} and without a leading ./, sorted by byte order, in {path}.",
            f"Find the files anywhere under {scene.at}/{top} that are world-writable and put their paths (relative to that directory, no ./ "
            f"in front, sorted, one per line) into {path}.",
            f"I want to know which files below {scene.at}/{top} just anybody can write to: a sorted list in {path}, one path a line, counted "
            f"from {scene.at}/{top}, so without that prefix and without ./.",
        ),
        thought="find can test the write bit for others; %P prints the path below the starting point.",
        command=f"find {top} -type f -perm -o=w -printf '%P\\n' | LC_ALL=C sort > {scene.report}",
        checks=(lines_are(path, listing),),
        mistakes=(
            slip(
                "command_error",
                f"find {top} -type f -perm o=w -printf '%P\\n' | LC_ALL=C sort > {scene.report}",
                "-perm takes the bit to look for.",
            ),
            slip(
                "requirement_violation",
                f"find {top} -type f -perm -o=w | LC_ALL=C sort > {scene.report}",
                "find prints the paths as needed.",
            ),
            slip(
                "analysis_error",
                f"find {top} -type f -perm -u=w -printf '%P\\n' | LC_ALL=C sort > {scene.report}",
                "Writable is the w bit.",
            ),
        ),
        truth=("\n".join(listing),),
    )


def _tidy(scene: Scene) -> Step:
    top = scene.folders[0]
    path = f"{scene.at}/{top}"
    relative = {paper.removeprefix(top + "/"): scene.modes[paper] & ~0o002 for paper in scene.papers}
    loose = next(paper for paper in scene.papers if scene.modes[paper] & 0o002)
    return Step(
        says=(
            f"Remove write permission for others from all files below {path}, changing no other bit.",
            f"Take away the world-write bit from every file under {path}, at any depth; all the other bits stay as they are.",
            f"Others shouldn't be able to write any file under {path}. Nothing else about the permissions may change.",
        ),
        thought="o-w takes one bit away and leaves the rest, -R reaches the subdirectories.",
        command=f"chmod -R o-w {top}",
        checks=(modes_are(path, relative, "no_world_write"),),
        mistakes=(
            slip(
                "requirement_violation",
                f"chmod -R 644 {top}/*/ {top}",
                "644 is the usual mode of a file.",
                *_restore(scene),
            ),
            slip("command_error", f"chmod -R o+w {top}", "o is others and w is write.", *_restore(scene)),
            slip("hallucination", f"chmod --strip=o=w -R {top}", "chmod can strip a permission."),
            slip("verification_failure", f"chmod -R u-w {loose}", "That was the loose file.", f"chmod u+w {loose}"),
        ),
    )


def _restore(scene: Scene) -> tuple[str, ...]:
    folders = " ".join(shlex.quote(folder) for folder in scene.folders)
    return (f"chmod 755 {folders}", *(f"chmod {scene.modes[paper]:o} {paper}" for paper in scene.papers))


_STEPS = (_report, _tidy, _runnable, _private, _shared)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent corrections on one tree; the report comes before the tidying that changes it."""
    scene = _scene(rng, place)
    chosen = sorted(rng.sample(range(len(_STEPS)), depth))
    contents = {path: words.prose(rng, rng.randint(2, 6)) for path in scene.modes}
    contents |= {path: f"#!/bin/sh\necho {words.token(rng)}\n" for path in scene.scripts}
    readme = f"{scene.scripts[0].split('/')[0]}/README"
    files = [text_file(place, path, text) for path, text in (contents | {readme: words.prose(rng, 3)}).items()]
    directory = place.directory
    return assemble(
        family=name,
        title="Repair file permissions",
        place=place,
        openings=(
            f"This is about the permissions in {directory}.",
            f"Somebody unpacked {directory} with the wrong umask.",
            f"Please sort out who may do what in {directory}.",
        ),
        steps=[_STEPS[index](scene) for index in chosen],
        files=files,
        setup=(
            f"mkdir -p {' '.join(scene.folders)}",
            f"chmod 755 {' '.join(sorted({path.split('/')[0] for path in scene.modes} | set(scene.folders)))}",
            *(f"chmod {mode:o} {path}" for path, mode in scene.modes.items()),
            f"chmod 644 {readme}",
        ),
        initial_checks=(
            present(directory, [*scene.modes, readme]),
            absent(f"{directory}/{scene.shared}"),
            absent(f"{directory}/{scene.report}"),
        ),
    )
