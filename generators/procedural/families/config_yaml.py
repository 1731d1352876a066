"""A YAML file of services, where types and nesting matter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file

name = "config-yaml"
category = "configuration"
tools: tuple[str, ...] = ("sed", "awk", "python3")
depths = range(1, 6)


@dataclass(kw_only=True)
class Stack:
    """The file; `services` changes with every step, so that it ends as what the file has to hold."""

    file: str
    path: str
    services: dict[str, dict[str, Any]]
    taken: set[str] = field(default_factory=set)

    def text(self) -> str:
        lines = ["# deployed by hand", "services:"]
        for service, settings in self.services.items():
            lines += [
                f"  {service}:",
                f"    image: {settings['image']}",
                f"    replicas: {settings['replicas']}",
                "    ports:",
            ]
            lines += [f'      - "{port}"' for port in settings["ports"]]
            lines += [
                "    environment:",
                *(f'      {key}: "{value}"' for key, value in settings["environment"].items()),
            ]
        return "\n".join(lines) + "\n"

    def pick(self, rng: random.Random) -> str:
        """A service between the first and the last that no other step is about."""
        service = rng.choice([name for name in list(self.services)[1:-1] if name not in self.taken])
        self.taken.add(service)
        return service


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    file = f"{rng.choice(words.PROJECTS)}.yaml"
    stack = _stack(rng, file, f"{place.directory}/{file}")
    source = text_file(place, file, stack.text())
    jobs = sorted(
        rng.sample((_image, _replicas, _port, _variable, _drop, _images), depth), key=lambda job: job is _images
    )
    steps = [job(rng, stack, place) for job in jobs]
    expected = {"services": stack.services}
    holds = check(
        stack.path,
        "services",
        f"expected = {expected!r}",
        "assert read_yaml(path) == expected, f'{path} does not hold what was asked for'",
    )
    return assemble(
        family=name,
        title=f"Services in {file}",
        place=place,
        openings=(
            f"The YAML file {stack.path} describes services, by name below `services`. Whatever is not mentioned keeps its value and its type.",
            f"Our services are set up in {stack.path}, a YAML file with one entry per service under `services`. Nothing but the following may change, types included.",
            f"Please work on {stack.path} for me: YAML, one entry a service below `services`. Everything else must read back exactly as now.",
        ),
        steps=steps,
        files=(source,),
        initial_checks=(present(place.directory, (file,)),),
        guards=(holds,) if jobs != [_images] else (),
    )


def _stack(rng: random.Random, file: str, path: str) -> Stack:
    services = {
        service: {
            "image": f"{rng.choice(words.TEAMS)}/{service}:{rng.randint(1, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
            "replicas": rng.randint(1, 6),
            "ports": [f"{rng.randint(8000, 9999)}:{rng.randint(80, 90)}"],
            "environment": {
                f"{term.upper()}_{rng.choice(('MODE', 'LIMIT', 'PATH'))}": words.token(rng, 4)
                for term in words.distinct(rng, words.TERMS, 2)
            },
        }
        for service in words.distinct(rng, words.SERVICES, 7)
    }
    return Stack(file=file, path=path, services=services)


def _within(service: str, script: str) -> str:
    """A sed script limited to the entry of one service."""
    return f"'/^  {service}:/,/^  [a-z]/ {script}'"


def _image(rng: random.Random, stack: Stack, place: Place) -> Step:
    service = stack.pick(rng)
    image = f"{stack.services[service]['image'].split(':')[0]}:{rng.randint(10, 19)}.{rng.randint(0, 30)}.{rng.randint(0, 9)}"
    stack.services[service]["image"] = image
    change = f"s#image: .*#image: {image}#"
    right = _within(service, change)
    return Step(
        says=(
            f"Set the image of the service {service} in {stack.path} to {image}.",
            f"Move {service} to the image {image} in {stack.path}.",
            f"In {stack.path}, {service} should run the image {image} from now on.",
        ),
        thought="Every service has an image line, so I substitute inside the one entry only.",
        command=edit(stack.file, right),
        mistakes=(
            botched("analysis_error", stack.file, f"'{change}'", "The image line gets the new value."),
            botched(
                "command_error",
                stack.file,
                _within(service, f"s#image: .*#image:{image}#"),
                "The blank after the colon makes no difference.",
            ),
            beside(stack.file, right),
            unsaved(stack.file, right),
        ),
    )


def _replicas(rng: random.Random, stack: Stack, place: Place) -> Step:
    service, count = stack.pick(rng), rng.randint(7, 40)
    stack.services[service]["replicas"] = count
    right = _within(service, f"s/replicas: .*/replicas: {count}/")
    return Step(
        says=(
            f"Set replicas of the service {service} in {stack.path} to the number {count}.",
            f"Scale {service} in {stack.path} to {count} replicas (a number, as it is now).",
            f"The service {service} in {stack.path} needs {count} replicas, still written as a number.",
        ),
        thought="One number inside one entry.",
        command=edit(stack.file, right),
        mistakes=(
            botched(
                "requirement_violation",
                stack.file,
                _within(service, f's/replicas: .*/replicas: "{count}"/'),
                "Quotes are always safe in YAML.",
            ),
            botched(
                "analysis_error", stack.file, f"'s/replicas: .*/replicas: {count}/'", "There is one number of replicas."
            ),
            beside(stack.file, right),
            unsaved(stack.file, right),
        ),
    )


def _port(rng: random.Random, stack: Stack, place: Place) -> Step:
    service, port = stack.pick(rng), f"{rng.randint(2000, 7999)}:{rng.randint(21, 59)}"
    stack.services[service]["ports"].insert(0, port)
    right = _within(service, f's/^    ports:$/&\\n      - "{port}"/')
    return Step(
        says=(
            f"Add the text {port} as the first entry to the ports of the service {service} in {stack.path}; the present entry follows it.",
            f"Publish one more port for {service} in {stack.path}: put {port}, as a text, in front of the one that is in its list.",
            f"In {stack.path} the list of ports of {service} should begin with the text {port}, before what is there already.",
        ),
        thought="Two numbers with a colon can be read as base sixty, so the entry needs quotes.",
        command=edit(stack.file, right),
        mistakes=(
            botched(
                "command_error",
                stack.file,
                _within(service, f"s/^    ports:$/&\\n      - {port}/"),
                "With the colon in it, it is a text anyway.",
            ),
            botched(
                "requirement_violation",
                stack.file,
                _within(
                    service,
                    f's/^    ports:$/&\\n      - "{port}"/;/^    ports:/,/^    env/ {{/"{stack.services[service]["ports"][1]}"/d}}',
                ),
                "The new port takes the place of the old one.",
            ),
            beside(stack.file, right),
            unsaved(stack.file, right),
        ),
    )


def _variable(rng: random.Random, stack: Stack, place: Place) -> Step:
    service = stack.pick(rng)
    key, value = f"{rng.choice(words.PROJECTS).upper()}_VERSION", f"{rng.randint(1, 9)}.{rng.randint(1, 9)}0"
    stack.services[service]["environment"][key] = value
    right = _within(service, f's/^    environment:$/&\\n      {key}: "{value}"/')
    return Step(
        says=(
            f"Add the variable {key} with the text {value} to the environment of the service {service} in {stack.path}.",
            f"Give {service} in {stack.path} one more environment variable: {key}, whose value is the text {value}.",
            f"The environment of {service} in {stack.path} lacks {key}; it should be the text {value}, with its zero at the end.",
        ),
        thought="Unquoted it would be read as a number and lose its zero.",
        command=edit(stack.file, right),
        mistakes=(
            botched(
                "command_error",
                stack.file,
                _within(service, f"s/^    environment:$/&\\n      {key}: {value}/"),
                "Values need no quotes in YAML.",
            ),
            botched(
                "analysis_error",
                stack.file,
                _within(service, f's/^    environment:$/    {key}: "{value}"\\n&/'),
                "A line next to the environment puts it there.",
            ),
            beside(stack.file, right),
            unsaved(stack.file, right),
        ),
    )


def _drop(rng: random.Random, stack: Stack, place: Place) -> Step:
    service = stack.pick(rng)
    del stack.services[service]
    right = f"""awk '/^  [a-z]/ {{skip = $1 == "{service}:"}} !skip' {stack.file}"""
    return Step(
        says=(
            f"Remove the service {service} from {stack.path} altogether.",
            f"Delete the whole entry of {service} in {stack.path}.",
            f"The service {service} is history, so its complete entry in {stack.path} should go.",
        ),
        thought="Skip the lines from this service's name up to the next service.",
        command=f"{right} > {stack.file}.tmp && mv {stack.file}.tmp {stack.file}",
        mistakes=(
            botched("analysis_error", stack.file, f"'/^  {service}:/d'", "The line with its name is the service."),
            botched(
                "command_error",
                stack.file,
                f"'/^  {service}:/,/^  [a-z]/d'",
                "From this name to the next one everything goes.",
            ),
            slip("verification_failure", right, "The output no longer has the service."),
        ),
    )


def _images(rng: random.Random, stack: Stack, place: Place) -> Step:
    lines = sorted(f"{settings['image']} {service}" for service, settings in stack.services.items())
    target = f"{place.directory}/images.txt"
    listing = f"awk '/^  [a-z]/ {{service = substr($1, 1, length($1) - 1)}} $1 == \"image:\" {{print $2, service}}' {stack.file}"
    return report(
        place,
        "images.txt",
        lines,
        f"{listing} | LC_ALL=C sort",
        says=(
            f"Write the images in the finished {stack.path} to {target}: image, one blank, name of the service, one service a line, lines sorted by byte value.",
            f"List all services of {stack.path}, as it is in the end, in {target}: lines `image service` with one blank between, sorted as plain bytes (LC_ALL=C).",
            f"In {target} I'd like to see what {stack.path} then runs: a line with image, blank, service for each, in the order of LC_ALL=C sort.",
        ),
        thought="awk keeps the service it is in and prints it behind the image; then sort.",
        slips=(
            (
                "requirement_violation",
                f"grep -o 'image: .*' {stack.file} | cut -d' ' -f2 | LC_ALL=C sort",
                "The sorted images are the list.",
            ),
            (
                "command_error",
                listing.replace("substr($1, 1, length($1) - 1)", "$1") + " | LC_ALL=C sort",
                "The first field is the service.",
            ),
        ),
    )
