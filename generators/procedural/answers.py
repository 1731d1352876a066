"""Pieces made of questions: each step reads the same inputs and writes one answer file of its own.

Invariants: no answer file exists at the start; every input does, and is guarded to the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from generators.messages import ErrorType
from generators.procedural import words
from generators.procedural.checks import absent, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble
from sandbox.spec import File


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answer files of one piece."""

    rng: random.Random
    place: Place
    names: list[str] = field(default_factory=list)

    def fresh(self, suffix: str = ".txt") -> str:
        """The absolute path of an answer file that no other step writes."""
        while (name := f"{self.rng.choice(words.STEMS)}-{self.rng.choice(words.TERMS)}{suffix}") in self.names:
            pass
        self.names.append(name)
        return f"{self.place.directory}/{name}"

    def step(
        self,
        path: str,
        lines: Sequence[str],
        command: str,
        *,
        says: tuple[str, str, str],
        thought: str,
        slips: Sequence[tuple[ErrorType, str, str]],
    ) -> Step:
        """The output of `command` becomes the answer file `path`. See `reports.report`."""
        file = path.removeprefix(f"{self.place.directory}/")
        return report(self.place, file, lines, command, says=says, thought=thought, slips=slips)

    def piece(
        self,
        *,
        family: str,
        title: str,
        openings: tuple[str, str, str],
        steps: Sequence[Step],
        files: Sequence[File],
        setup: tuple[str, ...] = (),
        made: Sequence[str] = (),
    ) -> Piece:
        """All steps together. `made` are relative paths of files that the set-up makes."""
        directory = self.place.directory
        return assemble(
            family=family,
            title=title,
            place=self.place,
            openings=openings,
            steps=steps,
            files=files,
            setup=setup,
            initial_checks=(
                present(directory, [file.path.removeprefix(f"{directory}/") for file in files] + list(made)),
                *(absent(f"{directory}/{name}") for name in self.names),
            ),
            guards=tuple(unchanged(file.path, file.data) for file in files),
        )
