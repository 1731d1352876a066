"""Backups: pack without rubbish, mirror, keep the last few, get one file back, copy only what is new."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from generators.procedural import words
from generators.procedural.checks import archive_holds, present, tree_holds, tree_is
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip
from sandbox.spec import File

name = "backup-rotate"
category = "backup"
tools: tuple[str, ...] = ("tar", "rsync", "ls", "find")
depths = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A step with the inputs and the set-up that it needs."""

    step: Step
    files: tuple[File, ...]
    setup: tuple[str, ...] = ()


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    makers = rng.sample((_pack, _mirror, _rotate, _restore, _newer), depth)
    stems = words.distinct(rng, words.PROJECTS, depth)
    jobs = [make(rng, place, stem) for make, stem in zip(makers, stems, strict=True)]
    files = [file for job in jobs for file in job.files]
    return assemble(
        family=name,
        title="Look after backups",
        place=place,
        openings=(
            f"The backups in {place.directory} need attention.",
            f"I look after a few backups in {place.directory} and have something to be done there.",
            f"Please help me with the backups in {place.directory}.",
        ),
        steps=[job.step for job in jobs],
        files=files,
        setup=tuple(command for job in jobs for command in job.setup),
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
    )


def _tree(rng: random.Random, count: int) -> dict[str, bytes]:
    """Files in two levels of directories."""
    folders = words.distinct(rng, words.AREAS, 2)
    return {
        f"{('', folders[0] + '/', f'{folders[0]}/{folders[1]}/')[index % 3]}{file}": words.prose(
            rng, rng.randint(2, 5)
        ).encode()
        for index, file in enumerate(words.file_names(rng, count, (".txt", ".md", ".csv")))
    }


def _placed(place: Place, folder: str, tree: Mapping[str, bytes]) -> tuple[File, ...]:
    return tuple(
        File(path=f"{place.directory}/{folder}/{path}", data=data, owner="agent") for path, data in tree.items()
    )


def _pack(rng: random.Random, place: Place, stem: str) -> Job:
    good = _tree(rng, 6)
    rubbish = {f"{file}.tmp": b"scratch\n" for file in words.file_names(rng, 2, ("",))} | {
        f".cache/{words.token(rng)}": b"cached\n"
    }
    archive, target, source = f"{stem}.tar.gz", f"{place.directory}/{stem}.tar.gz", f"{place.directory}/{stem}"
    command = f"tar -czf {archive} --exclude='*.tmp' --exclude={stem}/.cache {stem}"
    step = Step(
        says=(
            f"Pack the directory {source} into {target} (gzip), the members with {stem}/ in front, leaving out the directory .cache in it and all files whose names end in .tmp.",
            f"Make a gzipped tar archive {target} of {source}: names in it begin with {stem}/, and neither *.tmp files nor the directory {stem}/.cache get in.",
            f"Back up {source} as {target}, a tar.gz whose members start with {stem}/. Skip {stem}/.cache and whatever ends in .tmp.",
        ),
        thought="tar with two exclusions, from the directory above so that the names begin right.",
        command=command,
        checks=(archive_holds(target, {f"{stem}/{path}": data for path, data in good.items()}),),
        mistakes=(
            slip(
                "requirement_violation",
                f"tar -czf {archive} --exclude={stem}/.cache {stem}",
                "The cache is what must not be in it.",
            ),
            slip(
                "command_error",
                f"tar -czf {archive} -C {stem} --exclude='*.tmp' --exclude=.cache .",
                "I pack from inside the directory.",
            ),
            slip(
                "verification_failure",
                f"gzip -c {stem}/* > {archive} 2> /dev/null; ls {archive}",
                "The archive is there.",
            ),
        ),
    )
    return Job(step=step, files=_placed(place, stem, good | rubbish))


def _mirror(rng: random.Random, place: Place, stem: str) -> Job:
    now = _tree(rng, 6)
    paths = list(now)
    then = {path: b"older\n" if index == 1 else now[path] for index, path in enumerate(paths[:4])}
    stale = {f"{file}.old": words.prose(rng, 2).encode() for file in words.file_names(rng, 2, (".txt",))}
    source, target = f"{place.directory}/{stem}", f"{place.directory}/{stem}-mirror"
    step = Step(
        says=(
            f"Bring {target} in line with {source}: the same files with the same contents, and nothing that {source} doesn't have.",
            f"Make {target} an exact mirror of {source}; what is only in the mirror has to go.",
            f"The mirror {target} has fallen behind {source}. Update it, and remove from it what no longer exists in the original.",
        ),
        thought="rsync with --delete, slashes at the end so that contents go into contents.",
        command=f"rsync -a -c --delete {stem}/ {stem}-mirror/",
        checks=(tree_holds(target, now), tree_is(target, list(now)), tree_holds(source, now)),
        mistakes=(
            slip(
                "requirement_violation",
                f"rsync -a -c {stem}/ {stem}-mirror/",
                "rsync brings everything over that is new.",
            ),
            slip(
                "command_error",
                f"rsync -a -c --delete {stem} {stem}-mirror/",
                "Source and target, rsync does the rest.",
            ),
            slip("verification_failure", f"rsync -a -c -n --delete {stem}/ {stem}-mirror/", "rsync reports no error."),
        ),
    )
    return Job(step=step, files=(*_placed(place, stem, now), *_placed(place, f"{stem}-mirror", then | stale)))


def _rotate(rng: random.Random, place: Place, stem: str) -> Job:
    keep, extra = rng.sample((3, 4, 5, 6), 2)
    last = words.moment(rng)
    days: dict[str, None] = {}
    while len(days) < keep + extra:
        last -= timedelta(days=rng.randint(1, 20))
        days[f"{stem}-{last:%Y%m%d}.tar"] = None
    names = list(days)
    files = {file: f"{words.token(rng)}\n".encode() for file in names}
    folder, target = f"{stem}-daily", f"{place.directory}/{stem}-daily"
    stamps = tuple(f"touch -d '2024-06-{1 + index:02d} 12:00' {folder}/{file}" for index, file in enumerate(names))
    step = Step(
        says=(
            f"In {target} keep the {keep} archives with the latest dates in their names and delete the older ones; modification times don't mean anything there.",
            f"Thin out {target}: the {keep} newest archives by the date in the file name stay, the others are deleted. Don't go by modification times.",
            f"We only need the last {keep} archives in {target}. The date in the name counts (the files have been copied around, so their times are meaningless); remove the rest.",
        ),
        thought=f"The dates sort as text: all but the last {keep} names can go.",
        command=f"ls {folder} | sort | head -n -{keep} | sed 's#^#{folder}/#' | xargs rm",
        checks=(tree_is(target, names[:keep]), tree_holds(target, {file: files[file] for file in names[:keep]})),
        mistakes=(
            slip(
                "analysis_error",
                f"cp -r {folder} {folder}.safe && ls -t {folder} | tail -n +{keep + 1} | sed 's#^#{folder}/#' | xargs rm",
                "ls -t has the newest on top.",
                f"rm -r {folder} && mv {folder}.safe {folder}",
            ),
            slip(
                "command_error",
                f"cp -r {folder} {folder}.safe && ls {folder} | sort | head -n {keep} | sed 's#^#{folder}/#' | xargs rm",
                f"head -n {keep} leaves that many.",
                f"rm -r {folder} && mv {folder}.safe {folder}",
            ),
            slip("verification_failure", f"ls {folder} | sort | tail -n {keep}", "These are the ones that stay."),
        ),
    )
    return Job(step=step, files=_placed(place, folder, files), setup=stamps)


def _restore(rng: random.Random, place: Place, stem: str) -> Job:
    tree = _tree(rng, 6)
    wanted = rng.choice([path for path in tree if "/" in path])
    archive, folder = f"{stem}-full.tar", f"{stem}-live"
    live = {path: b"newer " + data for path, data in tree.items()}
    source = File(path=f"{place.directory}/{archive}", data=_tar(stem, tree), owner="agent")
    target = f"{place.directory}/{folder}"
    expected = live | {wanted: tree[wanted]}
    step = Step(
        says=(
            f"Restore the file {wanted} in {target} from the archive {source.path} (there it is {stem}/{wanted}); every other file in {target} stays as it is.",
            f"Get {wanted} back from {source.path}, where it is called {stem}/{wanted}, to its place in {target}, without touching any other file there.",
            f"Somebody spoiled {wanted} in {target}. The archive {source.path} has the good version as {stem}/{wanted}; only this one file should be replaced.",
        ),
        thought="Extract just that member, without its first directory, into the live tree.",
        command=f"tar -xf {archive} -C {folder} --strip-components=1 {stem}/{wanted}",
        checks=(tree_holds(target, expected), tree_is(target, list(expected))),
        mistakes=(
            slip(
                "requirement_violation",
                f"cp -r {folder} {folder}.safe && tar -xf {archive} -C {folder} --strip-components=1",
                "Unpacking the archive brings the file back.",
                f"rm -r {folder} && mv {folder}.safe {folder}",
            ),
            slip(
                "command_error",
                f"tar -xf {archive} -C {folder} {stem}/{wanted}",
                "tar puts the member where it belongs.",
                f"rm -r {folder}/{stem}",
            ),
            slip(
                "verification_failure", f"tar -tf {archive} {stem}/{wanted}", "The archive has it and reports no error."
            ),
        ),
    )
    return Job(step=step, files=(source, *_placed(place, folder, live)))


def _tar(top: str, tree: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in tree.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size, member.mode, member.mtime = len(data), 0o644, 1_600_000_000
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _newer(rng: random.Random, place: Place, stem: str) -> Job:
    tree = _tree(rng, 9)
    new = sorted(rng.sample(list(tree), rng.randint(3, 4)))
    day = words.moment(rng).replace(hour=12, minute=0, second=0)
    before, after = (
        f"{day + timedelta(days=shift):%Y-%m-%d %H:%M}" for shift in (-rng.randint(2, 40), rng.randint(2, 40))
    )
    marker, source = f"{stem}.last-run", f"{place.directory}/{stem}"
    target, folder = f"{place.directory}/{stem}-increment", f"{stem}-increment"
    files = (*_placed(place, stem, tree), File(path=f"{place.directory}/{marker}", data=b"", owner="agent"))
    setup = (
        f"touch -d '{day:%Y-%m-%d %H:%M}' {marker}",
        *(f"touch -d '{after if path in new else before}' {stem}/{path}" for path in tree),
    )
    copy = f"rsync -a --files-from=- {stem}/ {folder}/"
    step = Step(
        says=(
            f"Copy the files below {source} that were modified after {place.directory}/{marker} into {target}, under the same relative paths, and no other files.",
            f"Make an incremental copy in {target}: those files of {source} whose modification time is later than that of {place.directory}/{marker}, with their directories, nothing else.",
            f"What has changed in {source} since the last run? The file {place.directory}/{marker} has that run's time; copy only newer files, keeping their paths below {source}, into {target}.",
        ),
        thought="find -newer lists them by relative path, rsync copies such a list.",
        command=f"find {stem} -type f -newer {marker} -printf '%P\\n' | {copy}",
        checks=(tree_is(target, new), tree_holds(target, {path: tree[path] for path in new})),
        mistakes=(
            slip(
                "analysis_error",
                f"find {stem} -type f ! -newer {marker} -printf '%P\\n' | {copy}",
                "The files that the last run has not seen.",
                f"rm -r {folder}",
            ),
            slip(
                "command_error",
                f"mkdir -p {folder} && find {stem} -type f -newer {marker} -exec cp {{}} {folder}/ ';'",
                "Each newer file is copied into the directory.",
                f"rm -r {folder}",
            ),
            slip(
                "requirement_violation",
                f"cp -a {stem} {folder}",
                "A full copy surely has everything that is new.",
                f"rm -r {folder}",
            ),
        ),
    )
    return Job(step=step, files=files, setup=setup)
