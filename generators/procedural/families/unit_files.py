"""A service's systemd unit: the start command, restart policy, environment, order, limits; each section has its own keys."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, text_file

name = "unit-files"
category = "service set-up"
tools: tuple[str, ...] = ("sed",)
depths = range(1, 6)


@dataclass
class Unit:
    """The file's lines, which change with every step, so that they end as what the file has to be."""

    file: str
    path: str
    lines: list[str]

    def value(self, key: str) -> str:
        return next(line for line in self.lines if line.startswith(f"{key}=")).removeprefix(f"{key}=")

    def replace(self, old: str, *new: str) -> None:
        at = self.lines.index(old)
        self.lines[at : at + 1] = new


Job = Callable[[random.Random, Unit], Step]


def _unit(rng: random.Random, place: Place) -> Unit:
    service, other = words.distinct(rng, words.SERVICES, 2)
    project = rng.choice(words.PROJECTS)
    lines = [
        "[Unit]",
        f"Description={words.phrase(rng, 2, 4).capitalize()}",
        f"After=network.target {other}.service",
        f"# Restart=on-failure was discussed with {rng.choice(words.PEOPLE)}",
        "StartLimitBurst=5",
        "",
        "[Service]",
        f"ExecStartPre=/opt/{project}/bin/{service} --check",
        f"ExecStart=/opt/{project}/bin/{service} --port {rng.randint(2000, 9000)}",
        f"Environment=LEVEL={rng.choice(('info', 'debug', 'error'))}",
        f"Environment=REGION={rng.choice(words.CITIES)}",
        "Restart=no",
        f"RestartSec={rng.randint(11, 90)}",
        f"User={rng.choice(words.PEOPLE)}",
        f"LimitNOFILE={rng.randint(11, 99) * 64}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    file = f"units/{service}.service"
    return Unit(file, f"{place.directory}/{file}", lines)


def _command(rng: random.Random, unit: Unit) -> Step:
    old, extra = unit.value("ExecStart"), f"--{rng.choice(words.TERMS)}={words.token(rng, 4)}"
    unit.replace(f"ExecStart={old}", f"ExecStart={old} {extra}")
    right = f"'/^ExecStart=/s/$/ {extra}/'"
    return Step(
        says=(
            f"Append the argument {extra} to the ExecStart line of {unit.path}, after a blank; ExecStartPre stays as it is.",
            f"{unit.path} has to start its program with the additional last argument {extra}; its ExecStartPre doesn't get it.",
            f"The main command (ExecStart, not ExecStartPre) in {unit.path} needs one more argument at the end: {extra}.",
        ),
        thought="With the equals sign the address leaves ExecStartPre out.",
        command=edit(unit.file, right),
        mistakes=(
            botched(
                "analysis_error",
                unit.file,
                f"'/^ExecStart/s/$/ {extra}/'",
                "The lines that begin with ExecStart are the command.",
            ),
            botched(
                "command_error",
                unit.file,
                f"'s/^ExecStart=.*/ExecStart={extra}/'",
                "The substitution sets the argument.",
            ),
            beside(unit.file, right),
        ),
    )


def _restart(rng: random.Random, unit: Unit) -> Step:
    value, seconds = rng.choice(("always", "on-failure", "on-abnormal")), rng.randint(2, 10)
    unit.replace("Restart=no", f"Restart={value}")
    unit.replace(f"RestartSec={unit.value('RestartSec')}", f"RestartSec={seconds}")
    right = f"-e 's/^Restart=.*/Restart={value}/' -e 's/^RestartSec=.*/RestartSec={seconds}/'"
    return Step(
        says=(
            f"Set Restart={value} and RestartSec={seconds} in {unit.path}, in the lines where these keys are.",
            f"Let {unit.path} restart: change its lines to Restart={value} and RestartSec={seconds}.",
            f"After a crash nobody restarts the service of {unit.path}. Where it says Restart and RestartSec now, it should say {value} and {seconds}.",
        ),
        thought="Two substitutions, each anchored, so that the comment isn't touched.",
        command=edit(unit.file, right),
        mistakes=(
            botched(
                "command_error", unit.file, f"'s/Restart.*=.*/Restart={value}/'", "One pattern for both keys does it."
            ),
            botched(
                "requirement_violation",
                unit.file,
                f"'s/^Restart=.*/Restart={value}/'",
                "The policy is what makes it restart.",
            ),
            unsaved(unit.file, right),
        ),
    )


def _environment(rng: random.Random, unit: Unit) -> Step:
    key, value = rng.choice(words.TERMS).upper(), words.token(rng, 4)
    last = [line for line in unit.lines if line.startswith("Environment=")][-1]
    new = f"Environment={key}={value}"
    unit.replace(last, last, new)
    right = f"'/^{last}$/a {new}'"
    return Step(
        says=(
            f"Add the line {new} to {unit.path}, directly below the last of its Environment lines.",
            f"The service of {unit.path} needs {key}={value} in its environment: one more Environment line right below those that are there.",
            f"Please give {unit.path} another environment variable, {key}={value}, in an Environment line of its own straight after the existing ones.",
        ),
        thought="The last Environment line is the place to append after.",
        command=edit(unit.file, right),
        mistakes=(
            botched("analysis_error", unit.file, f"'/^Environment=/a {new}'", "Append it after the Environment line."),
            botched(
                "requirement_violation", unit.file, f"'$a {new}'", "systemd reads the whole file, so the end is fine."
            ),
            botched("command_error", unit.file, f"'s/^{last}$/{new}/'", "The line gets its new content."),
        ),
    )


def _after(rng: random.Random, unit: Unit) -> Step:
    other = next(
        service for service in rng.sample(words.SERVICES, len(words.SERVICES)) if service not in "".join(unit.lines)
    )
    old = unit.value("After")
    unit.replace(f"After={old}", f"After={old} {other}.service", f"Wants={other}.service")
    right = f"'/^After=/{{s/$/ {other}.service/;a Wants={other}.service\n}}'"
    return Step(
        says=(
            f"Let {unit.path} start after {other}.service too: append it to the After line, after a blank, and put a new line Wants={other}.service directly below that line.",
            f"{unit.path} depends on {other}.service from now on. Its After line gets it as last entry, and right below comes a line Wants={other}.service.",
            f"Please make {unit.path} want {other}.service and start after it: one more entry at the end of After, and Wants={other}.service on the very next line.",
        ),
        thought="At the After line two things happen: one entry more, and a line behind it.",
        command=edit(unit.file, right),
        mistakes=(
            botched(
                "requirement_violation",
                unit.file,
                f"'/^After=/s/$/ {other}.service/'",
                "With the order given both are started.",
            ),
            botched(
                "analysis_error",
                unit.file,
                f"'s/^After=.*/After={other}.service\\nWants={other}.service/'",
                "The After line names what has to come first.",
            ),
            beside(unit.file, right),
        ),
    )


def _limits(rng: random.Random, unit: Unit) -> Step:
    files, memory = rng.randint(101, 900) * 64, rng.randint(2, 60) * 64
    old = unit.value("LimitNOFILE")
    unit.replace(f"LimitNOFILE={old}", f"LimitNOFILE={files}", f"MemoryMax={memory}M")
    right = f"'s/^LimitNOFILE=.*/LimitNOFILE={files}\\nMemoryMax={memory}M/'"
    return Step(
        says=(
            f"In {unit.path} change LimitNOFILE to {files} and add the line MemoryMax={memory}M directly below it.",
            f"Adjust the limits in {unit.path}: LimitNOFILE becomes {files}, and the next line is a new one, MemoryMax={memory}M.",
            f"{unit.path} may open {files} files (LimitNOFILE) and use {memory}M of memory; put MemoryMax={memory}M on a line of its own right below LimitNOFILE.",
        ),
        thought="One substitution that makes two lines of one.",
        command=edit(unit.file, right),
        mistakes=(
            botched(
                "requirement_violation",
                unit.file,
                f"'s/^LimitNOFILE=.*/LimitNOFILE={files}\\nMemoryMax={memory}/'",
                "The number is the limit.",
            ),
            botched(
                "command_error",
                unit.file,
                f"'s/^LimitNOFILE=.*/LimitNOFILE={files} MemoryMax={memory}M/'",
                "Both settings go where the limit was.",
            ),
            unsaved(unit.file, right),
        ),
    )


_JOBS: tuple[Job, ...] = (_command, _restart, _environment, _after, _limits)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent edits of one file."""
    unit = _unit(rng, place)
    source = text_file(place, unit.file, "".join(f"{line}\n" for line in unit.lines))
    steps = [job(rng, unit) for job in rng.sample(_JOBS, depth)]
    verdict = f"assert read_lines(path) == {unit.lines!r}, f'{{path}} is not as asked'"
    return assemble(
        family=name,
        title="Set up a service",
        place=place,
        openings=(
            f"The systemd unit {unit.path} has to be changed in place; lines that are not mentioned stay as they are.",
            f"I need changes in the systemd unit {unit.path}, right there. Leave all other lines of it alone.",
            f"Please edit the unit {unit.path}; what I don't mention should not change.",
        ),
        steps=steps,
        files=(source,),
        initial_checks=(present(place.directory, (unit.file,)),),
        guards=(check(unit.path, "settings", verdict),),
    )
