"""The basics: one everyday job a step, told in one short sentence, for policies that are just learning to act.

Invariants of every family made here:
- A piece of depth d is d jobs of one kind on different files, and each job is one command with absolute paths.
- The last wording is the terse one: a fixed sentence a job. All its names come from `NAMES` and `SUFFIXES`, so that a
  small vocabulary holds each of them whole.
- Reference and mistakes print nothing and end with exit code 0: what an agent sees after them is known without a run.
- File contents are drawn wide; they are what tells two pieces apart that name the same files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from generators.messages import ErrorType, Mistake
from generators.procedural import words
from generators.procedural.checks import bytes_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, slip
from sandbox.spec import AGENT_HOME, File

NAMES = tuple("ant bee cat cow dog eel elk fox hen jay owl pig ram rat yak bat cod emu gnu koi".split())
SUFFIXES = (".txt", ".log", ".csv", ".md")
TERSE_PLACES = tuple(f"{AGENT_HOME}/{name}" for name in ("box", "hub", "lab", "ops"))
"""Where terse tasks live: few, for the same reason as the names."""


@dataclass(kw_only=True)
class Scene:
    """What lies in the place, and which names are still free."""

    rng: random.Random
    directory: str
    files: dict[str, str] = field(default_factory=dict)
    """Path to text, as at the start."""
    _names: list[str] = field(default_factory=list)

    def name(self) -> str:
        """A name that nothing here has yet."""
        self._names = self._names or self.rng.sample(NAMES, len(NAMES))
        return self._names.pop()

    def path(self) -> str:
        """A path where nothing is yet."""
        return f"{self.directory}/{self.name()}{self.rng.choice(SUFFIXES)}"

    def file(self, lines: list[str] | None = None) -> str:
        """The path of an input with these lines, or with lines of its own: several, all different, not in order."""
        path = self.path()
        self.files[path] = "".join(f"{line}\n" for line in lines or self.lines())
        return path

    def lines(self) -> list[str]:
        """Four to six different lines, neither sorted nor the other way round."""
        while True:
            lines = [words.phrase(self.rng, 2, 4) for _ in range(self.rng.randint(4, 6))]
            if len(set(lines)) == len(lines) and lines not in (sorted(lines), sorted(lines, reverse=True)):
                return lines

    def keeps(self, path: str) -> str:
        """A check: an input is as it was."""
        return unchanged(path, self.files[path].encode())

    def holds(self, path: str, text: str) -> str:
        """A check: a file has this content."""
        return bytes_are(path, text.encode())


Job = Callable[[Scene], Step]
"""Draws one job: adds the inputs it needs to the scene."""


@dataclass(kw_only=True)
class Basic:
    """A family of one kind of job."""

    name: str
    category: str
    tools: tuple[str, ...]
    title: str
    job: Job
    depths: range = range(1, 4)

    def draw(self, rng: random.Random, depth: int, place: Place) -> Piece:
        """`depth` jobs, one after the other."""
        scene = Scene(rng=rng, directory=place.directory)
        bystander = scene.file()
        steps = [self.job(scene) for _ in range(depth)]
        return Piece(
            family=self.name,
            title=self.title,
            asks=tuple(" ".join(step.says[wording] for step in steps) for wording in range(3)),
            files=tuple(File(path=path, data=text.encode(), owner="agent") for path, text in scene.files.items()),
            commands=tuple(step.command for step in steps),
            thoughts=tuple(step.thought for step in steps),
            checks=(*(check for step in steps for check in step.checks), scene.keeps(bystander)),
            initial_checks=(
                present(place.directory, sorted(path.removeprefix(f"{place.directory}/") for path in scene.files)),
            ),
            mistakes=tuple(
                replace(mistake, step=number) for number, step in enumerate(steps) for mistake in step.mistakes
            ),
        )


_PROGRAMS: dict[str, tuple[ErrorType, str, str, str]] = {
    "cp": ("analysis_error", "cp {a} {b}", "The second file should be there then.", ""),
    "mv": ("command_error", "mv {a} {b}", "That puts it under the second name.", "mv {b} {a}"),
    "sort": ("analysis_error", "sort {a} > {b}", "The lines go over in order.", ""),
    "head": ("hallucination", "head -n 1 {a} > {b}", "The beginning is what matters.", ""),
    "tail": ("requirement_violation", "tail -n 1 {a} > {b}", "The end is what matters.", ""),
    "wc": ("hallucination", "wc -l < {a} > {b}", "The second file gets what is asked about the first.", ""),
}
"""Programs that take one file to another: each is right for one kind of job and a confusion in the others."""


def confused(a: str, b: str, *right: str) -> tuple[Mistake, ...]:
    """The jobs on two files that this one can be confused with: all programs but the right ones."""
    return tuple(
        slip(error, command.format(a=a, b=b), reason, *([repair.format(a=a, b=b)] if repair else []))
        for program, (error, command, reason, repair) in _PROGRAMS.items()
        if program not in right
    )
