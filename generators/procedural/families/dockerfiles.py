"""A folder of Dockerfiles: base images, ports, who runs as root; then pins, users and labels put right in one of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, text_file

name = "dockerfiles"
category = "container definitions"
tools: tuple[str, ...] = ("awk", "grep", "sed", "sort")
depths = range(1, 6)

_IMAGES = (
    "debian:bookworm-slim",
    "python:3.11-slim",
    "node:20-alpine",
    "golang:1.22",
    "alpine:3.19",
    "nginx:1.25",
    "redis:7",
)


@dataclass
class Scene:
    """Files by service; the lines of `service`'s own file change with the edits."""

    at: str
    files: dict[str, list[str]]
    service: str

    def name(self, service: str) -> str:
        return f"{service}/Dockerfile"

    @property
    def file(self) -> str:
        return self.name(self.service)

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"


def _lines(rng: random.Random, service: str, kind: int) -> list[str]:
    build, base = rng.sample(_IMAGES, 2)
    lines = [f"# {words.phrase(rng, 2, 4)}"]
    if kind % 2 == 0:
        lines += [
            f"FROM {build} AS build",
            f"WORKDIR /src/{service}",
            "USER builder",
            f"RUN make {rng.choice(words.TERMS)}",
            "EXPOSE 1",
            "",
        ]
    lines += [
        f"FROM {base}",
        f"ENV RELEASE={words.token(rng, 4)}",
        f"WORKDIR /opt/{service}",
        f"COPY {rng.choice(words.AREAS)}/ ./",
    ]
    lines += [f"RUN install-{rng.choice(words.TERMS)} --quiet", f"EXPOSE {rng.randint(2000, 9999)}"]
    if kind in {0, 1, 3}:
        lines.append(f"USER {rng.choice(words.PEOPLE) if kind else 'root'}")
    return [*lines, f'CMD ["{service}", "--serve"]']


def _scene(rng: random.Random, place: Place) -> Scene:
    services = words.distinct(rng, words.SERVICES, rng.randint(6, 8))
    kinds = [0, 1, 2, 3, *rng.choices(range(5), k=4)]
    files = {service: _lines(rng, service, kind) for service, kind in zip(services, kinds, strict=False)}
    return Scene(place.directory, dict(sorted(files.items())), services[2])


def _bases(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    last = {
        service: [line for line in lines if line.startswith("FROM ")][-1].split()[1]
        for service, lines in scene.files.items()
    }
    program = '/^FROM / {base[FILENAME] = $2} END {for (f in base) {split(f, p, "/"); print p[1], base[f]}}'
    return answers.step(
        out,
        [f"{service} {image}" for service, image in last.items()],
        f"awk '{program}' */Dockerfile | sort",
        says=(
            f"Write `SERVICE IMAGE` for every {scene.at}/SERVICE/Dockerfile to {out}, the image being that of the last FROM, sorted by service.",
            f"On which image does each service in {scene.at} finally run, that is, what does the last FROM of SERVICE/Dockerfile name? `SERVICE IMAGE` by service in {out}.",
            f"I need `SERVICE IMAGE` for all of {scene.at}/SERVICE/Dockerfile in {out}, in order of the services; with several FROM lines the last one counts.",
        ),
        thought="The last FROM of each file wins, so awk just overwrites.",
        slips=(
            (
                "analysis_error",
                f"awk '{program.replace('/^FROM /', '/^FROM / && !(FILENAME in base)')}' */Dockerfile | sort",
                "The first FROM names the image.",
            ),
            ("requirement_violation", "grep -h '^FROM ' */Dockerfile | sort", "The FROM lines name the images."),
        ),
    )


def _rooted(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = []
    for service, lines in scene.files.items():
        user = "root"
        for line in lines:
            user = "root" if line.startswith("FROM ") else line.split()[1] if line.startswith("USER ") else user
        found += [service] if user == "root" else []
    again = ' /^FROM / {u[FILENAME] = "root"}'
    program = (
        f'FNR == 1 {{u[FILENAME] = "root"}}{again}'
        + ' /^USER / {u[FILENAME] = $2} END {for (f in u) if (u[f] == "root") print f}'
    )
    tail = "cut -d/ -f1 | sort"
    return answers.step(
        out,
        found,
        f"awk '{program}' */Dockerfile | {tail}",
        says=(
            f"Write the services whose {scene.at}/SERVICE/Dockerfile ends up running as root to {out}, sorted, one per line: those whose last stage (from the last FROM on) has no USER line or whose last USER there is root.",
            f"Which services in {scene.at} run as root? Look at the last stage of SERVICE/Dockerfile, from its last FROM on: no USER, or root as the last USER. Sorted names, one a line, in {out}.",
            f"Find out who still runs as root in {scene.at}/SERVICE/Dockerfile. Only what comes after the last FROM counts: without a USER, or with root as the last one, it is root. Services in order, one a line, in {out}.",
        ),
        thought="Each FROM starts as root again; the last USER after it decides.",
        slips=(
            (
                "analysis_error",
                f"grep -L '^USER' */Dockerfile | {tail}",
                "Without a USER line a container runs as root.",
            ),
            (
                "command_error",
                f"awk '{program.replace(again, '')}' */Dockerfile | {tail}",
                "The last USER of a file decides.",
            ),
        ),
    )


def _pin(answers: Answers, scene: Scene) -> Step:
    lines = scene.files[scene.service]
    at = max(n for n, line in enumerate(lines) if line.startswith("FROM "))
    image = lines[at].split()[1]
    digest = words.token(answers.rng, 16)
    lines[at] = f"FROM {image}@sha256:{digest}"
    right = f"'s/^FROM {image}$/&@sha256:{digest}/'"
    return Step(
        says=(
            f"Pin the image of the last FROM in {scene.path}: {image} becomes {image}@sha256:{digest}; other lines don't change.",
            f"The last FROM of {scene.path} should name {image}@sha256:{digest} from now on; leave the other stage alone.",
            f"In {scene.path} the final stage has to be pinned to {image}@sha256:{digest}, nothing else.",
        ),
        thought="Anchored to that image the substitution touches one line.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "analysis_error",
                scene.file,
                f"'s/^FROM .*/FROM {image}@sha256:{digest}/'",
                "The FROM line is replaced by the pinned one.",
            ),
            botched(
                "command_error", scene.file, f"'s/{image}/sha256:{digest}/'", "The digest takes the place of the tag."
            ),
            beside(scene.file, right),
        ),
    )


def _user(answers: Answers, scene: Scene) -> Step:
    lines, user = scene.files[scene.service], f"run-{answers.rng.choice(words.TERMS)}"
    lines.insert(next(n for n, line in enumerate(lines) if line.startswith("CMD ")), f"USER {user}")
    right = f"'/^CMD /i USER {user}'"
    return Step(
        says=(
            f"Add the line `USER {user}` directly above the CMD line of {scene.path}.",
            f"Let {scene.path} run as {user}: one line `USER {user}`, right before CMD.",
            f"{scene.path} should not run as root: put `USER {user}` on a line of its own just above its CMD.",
        ),
        thought="sed can insert a line in front of the one that matches.",
        command=edit(scene.file, right),
        mistakes=(
            botched("command_error", scene.file, f"'/^CMD /a USER {user}'", "The new line goes to where CMD is."),
            botched(
                "analysis_error", scene.file, f"'/^FROM /a USER {user}'", "The user is set at the beginning of a stage."
            ),
            unsaved(scene.file, right),
        ),
    )


def _expose(answers: Answers, scene: Scene) -> Step:
    lines, port = scene.files[scene.service], str(answers.rng.randint(10000, 60000))
    at = max(n for n, line in enumerate(lines) if line.startswith("EXPOSE "))
    old = lines[at].split()[1]
    lines[at] = f"EXPOSE {port}"
    right = f"'s/^EXPOSE {old}$/EXPOSE {port}/'"
    return Step(
        says=(
            f"Change the port {old} in {scene.path} to {port} in the EXPOSE line of the last stage; other EXPOSE lines stay.",
            f"{scene.path} should expose {port} instead of {old}; don't touch the EXPOSE of the other stage.",
            f"The service of {scene.path} moved from port {old} to {port}; please correct that one EXPOSE line.",
        ),
        thought="The old port tells the right line apart.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "analysis_error", scene.file, f"'s/^EXPOSE .*/EXPOSE {port}/'", "The EXPOSE line gets the new port."
            ),
            botched(
                "requirement_violation", scene.file, f"'/^EXPOSE {old}$/a EXPOSE {port}'", "Both ports can be exposed."
            ),
            unsaved(scene.file, right),
            beside(scene.file, right),
        ),
    )


_STEPS = (_bases, _rooted, _pin, _user, _expose)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Reports about all files first, then edits of one."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    files = [
        text_file(place, scene.name(service), "".join(f"{line}\n" for line in lines))
        for service, lines in scene.files.items()
    ]
    chosen = sorted(rng.sample(range(len(_STEPS)), depth))
    steps = [_STEPS[index](answers, scene) for index in chosen]
    edited = lines_are(scene.path, scene.files[scene.service])
    return assemble(
        family=name,
        title="Check Dockerfiles",
        place=place,
        openings=(
            f"Each directory in {scene.at} is a service with a Dockerfile.",
            f"I'm going through the Dockerfiles of our services, {scene.at}/SERVICE/Dockerfile.",
            f"The Dockerfiles of our services are in {scene.at}, one folder a service.",
        ),
        steps=steps,
        files=files,
        initial_checks=(
            present(place.directory, [scene.name(service) for service in scene.files]),
            *(absent(f"{place.directory}/{file}") for file in answers.names),
        ),
        guards=(edited, *(unchanged(file.path, file.data) for file in files if file.path != scene.path)),
    )
