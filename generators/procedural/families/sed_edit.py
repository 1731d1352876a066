"""Edits of one settings file in place: rename a host, switch a line on, drop lines, insert, change one section only."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from generators.messages import ErrorType, Mistake
from generators.procedural import words
from generators.procedural.checks import bytes_are, present
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "sed-edit"
category = "text processing"
tools: tuple[str, ...] = ("cp", "mv", "sed")
depths = range(1, 6)


@dataclass
class Scene:
    """The file's lines as they stand after the steps so far."""

    rng: random.Random
    file: str
    lines: list[str]
    sections: list[str]
    host: str
    topic: str
    switches: list[str]

    def slip_in_place(self, error_type: ErrorType, script: str, reason: str) -> Mistake:
        """A wrong edit by someone who keeps a copy, which makes the way back easy."""
        kept = f"{self.file}.orig"
        return slip(error_type, f"sed -i.orig {script} {self.file}", reason, f"mv {kept} {self.file}")


def _rename(scene: Scene) -> Step:
    old = scene.host
    new = scene.rng.choice([host for host in words.HOSTS if host[:-2] != old[:-2]])
    scene.lines = [re.sub(rf"\b{old}\b", new, line) for line in scene.lines]
    return Step(
        says=(
            f"Replace the host name {old} by {new} wherever it stands as a whole word; longer names such as {old}1 stay.",
            f"The host {old} is called {new} now, so change it everywhere in the file, but only where it is the complete name: {old}1 is another machine.",
            f"Move it from {old} to {new}, all mentions of that machine; mind that {old}1 is a different one.",
        ),
        thought="Word boundaries protect the longer name, and g reaches a second mention on the same line.",
        command=f"sed -i 's/\\b{old}\\b/{new}/g' {scene.file}",
        mistakes=(
            scene.slip_in_place("analysis_error", f"'s/{old}/{new}/g'", f"{old} is distinctive enough."),
            slip("command_error", f"sed -i 's/\\b{old}\\b/{new}/' {scene.file}", "One substitution for each line."),
            slip(
                "verification_failure",
                f"sed 's/\\b{old}\\b/{new}/g' {scene.file}",
                "The output shows the new name, so it is done.",
            ),
        ),
    )


def _enable(scene: Scene) -> Step:
    key = scene.rng.choice(scene.switches)
    scene.lines = [line[1:] if line.startswith(f"#{key} =") else line for line in scene.lines]
    return Step(
        says=(
            f"Enable the setting {key} by removing the # at the start of its line.",
            f"Switch {key} on: its line is commented out with a #, take only that # away.",
            f"The {key} line is disabled; uncomment it and leave the other comments alone.",
        ),
        thought="Address the one line by its key and strip the leading #.",
        command=f"sed -i '/^#{key} =/s/^#//' {scene.file}",
        mistakes=(
            scene.slip_in_place("requirement_violation", "'s/^#//'", "That removes the comment sign."),
            scene.slip_in_place("command_error", f"'/^#{key} =/d'", "The # line goes away."),
            slip(
                "analysis_error", f"sed -i 's/^# {key} =/{key} =/' {scene.file}", "Comments begin with # and a space."
            ),
        ),
    )


def _drop(scene: Scene) -> Step:
    topic = scene.topic
    scene.lines = [line for line in scene.lines if not line.startswith(f"{topic}_")]
    return Step(
        says=(
            f"Delete every line that begins with {topic}_ and keep lines that mention {topic} elsewhere.",
            f"Throw out all settings whose name starts with {topic}_ (the whole line). Where {topic} stands in the middle of a line, the line stays.",
            f"The {topic}_ settings have to go, line and all; other lines that happen to contain {topic} should survive.",
        ),
        thought="Anchor the pattern at the start of the line.",
        command=f"sed -i '/^{topic}_/d' {scene.file}",
        mistakes=(
            scene.slip_in_place("analysis_error", f"'/{topic}/d'", f"Every line about {topic} has to go."),
            scene.slip_in_place("requirement_violation", f"'/^{topic}_/s/.*//'", "Emptied lines do nothing."),
            scene.slip_in_place("command_error", f"-n '/^{topic}_/p'", "-n keeps the matches from being printed."),
        ),
    )


def _insert(scene: Scene) -> Step:
    section = scene.rng.choice(scene.sections[:-1])
    line = f"{scene.rng.choice(words.TERMS)}_limit = {scene.rng.randint(2, 90)}"
    index = scene.lines.index(f"[{section}]")
    scene.lines = [*scene.lines[: index + 1], line, *scene.lines[index + 1 :]]
    return Step(
        says=(
            f"Insert the line `{line}` directly below the section heading [{section}].",
            f"Add `{line}` as the first line of the section [{section}], right under its heading.",
            f"[{section}] needs a new first entry, namely `{line}`, on the line after the heading.",
        ),
        thought="sed's a command appends after the matching heading.",
        command=f"sed -i '/^\\[{section}\\]$/a {line}' {scene.file}",
        mistakes=(
            scene.slip_in_place("analysis_error", f"'/^\\[{section}\\]$/i {line}'", "i inserts a line at the heading."),
            scene.slip_in_place(
                "command_error", f"'/^[{section}]$/a {line}'", "The heading is matched as it is written."
            ),
            scene.slip_in_place("requirement_violation", f"'$ a {line}'", "Settings are added at the end."),
        ),
    )


def _one_section(scene: Scene) -> Step:
    section = scene.rng.choice(scene.sections[:-1])
    value = scene.rng.randint(100, 900)
    inside = False
    changed = []
    for line in scene.lines:
        inside = line == f"[{section}]" if line.startswith("[") else inside
        changed.append(f"timeout = {value}" if inside and line.startswith("timeout =") else line)
    scene.lines = changed
    edit = f"s/^timeout = .*/timeout = {value}/"
    return Step(
        says=(
            f"Set timeout to {value} in the section [{section}] and nowhere else, written as `timeout = {value}`.",
            f"Change the timeout of [{section}] so that its line reads `timeout = {value}`. The other sections keep theirs.",
            f"Only [{section}] should get `timeout = {value}`; leave every other section's value.",
        ),
        thought="A range from the heading to the next heading limits the substitution.",
        command=f"sed -i '/^\\[{section}\\]$/,/^\\[/{edit}' {scene.file}",
        mistakes=(
            scene.slip_in_place("requirement_violation", f"'{edit}'", "The timeout is set by this name."),
            scene.slip_in_place(
                "analysis_error", f"'/^\\[{section}\\]$/,${edit}'", "From the heading on it is this section."
            ),
            scene.slip_in_place(
                "command_error",
                f"'/^\\[{section}\\]$/,/^\\[/s/timeout = /timeout = {value}/'",
                "That puts the value behind it.",
            ),
        ),
    )


_EDITS: tuple[Callable[[Scene], Step], ...] = (_rename, _enable, _drop, _insert, _one_section)


def _settings(rng: random.Random, sections: list[str], host: str, topic: str, switches: list[str]) -> list[str]:
    other = rng.choice([h for h in words.HOSTS if h != host])
    lines = [f"# {words.phrase(rng)} {topic} {words.phrase(rng, 1, 2)}"]
    for section in sections:
        keys = words.distinct(rng, words.STEMS, 3)
        body = [
            f"timeout = {rng.randint(5, 95)}",
            f"{keys[0]} = {host}:{rng.randint(2000, 9000)},{host}:{rng.randint(2000, 9000)}",
            f"{keys[1]} = {rng.choice((host + '1', other))}",
            f"{keys[2]} = {words.token(rng)} {topic}",
            f"# {words.phrase(rng)}",
            f"#{switches.pop()} = {rng.choice(words.TERMS)}",
            f"{topic}_{rng.choice(words.TERMS)} = {rng.randint(1, 9)}",
        ]
        rng.shuffle(body)
        lines += [f"[{section}]", *body, ""]
    lines += [f"# backup of {host}1", f"fallback = {host}1"]
    return lines


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Different edits of one file, in drawn order; the check is the whole file."""
    sections = words.distinct(rng, words.AREAS, rng.randint(3, 4))
    switches = [f"use_{term}" for term in words.distinct(rng, words.TERMS, len(sections))]
    host, topic = rng.choice(words.HOSTS), rng.choice(("trace", "debug", "legacy", "beta", "probe"))
    file = f"{rng.choice(words.SERVICES)}.{rng.choice(('conf', 'ini', 'cfg'))}"
    start = _settings(rng, sections, host, topic, list(switches))
    scene = Scene(rng, file, list(start), sections, host, topic, switches)
    steps = [edit(scene) for edit in rng.sample(_EDITS, depth)]
    path = f"{place.directory}/{file}"
    return assemble(
        family=name,
        title="Edit a settings file",
        place=place,
        openings=(
            f"Edit {path} in place; lines not mentioned here must stay byte for byte as they are.",
            f"The settings in {path} need a change. Please edit the file itself and leave everything else in it exactly as it is.",
            f"Something has to be adjusted in {path} (that file, no copy), without touching the rest of its text.",
        ),
        steps=steps,
        files=[text_file(place, file, "".join(f"{line}\n" for line in start))],
        initial_checks=(
            present(place.directory, [file]),
            bytes_are(path, "".join(f"{line}\n" for line in start).encode(), "as_delivered"),
        ),
        guards=(bytes_are(path, "".join(f"{line}\n" for line in scene.lines).encode()),),
    )
