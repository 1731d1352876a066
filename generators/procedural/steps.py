"""Pieces made of steps: a step is one sentence of the ask, one command, its checks and its mistakes, kept side by side.

A family that draws its piece as a list of steps gets asks, reference and mistakes that agree by construction, and a
depth that is simply the number of steps.

Invariants of an assembled piece:
- The first command changes into the place's directory; all others are written relative to it. So a piece may start in
  any directory, and several pieces can follow each other in one shell.
- Ask k joins the opening and every step's sentence k: 0 is the most exact, the last the loosest; each states everything.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from generators.messages import ErrorType, Mistake
from generators.procedural.family import Piece, Place
from sandbox.services import Service
from sandbox.spec import File

WORDINGS = 3
_CONNECTORS = ("First, ", "Then ", "After that, ", "Next, ", "Finally, ")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One sub-step of a piece."""

    says: tuple[str, str, str]
    """The sentence in three wordings, each beginning with a plain lower-case-able word: `Write the ...`."""
    thought: str
    command: str
    checks: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    truth: tuple[str, ...] = ()


def slip(error_type: ErrorType, command: str, reason: str, *repair: str) -> Mistake:
    """A mistake of the step it is listed in."""
    return Mistake(error_type=error_type, command=command, step=0, reason=reason, repair=repair)


def text_file(place: Place, name: str, text: str, *, mode: int = 0o644) -> File:
    """An input file of the piece."""
    return File(path=f"{place.directory}/{name}", data=text.encode(), mode=mode, owner="agent")


def assemble(
    *,
    family: str,
    title: str,
    place: Place,
    openings: tuple[str, str, str],
    steps: Sequence[Step],
    files: Sequence[File],
    initial_checks: tuple[str, ...],
    setup: tuple[str, ...] = (),
    root_setup: tuple[str, ...] = (),
    services: tuple[Service, ...] = (),
    guards: tuple[str, ...] = (),
) -> Piece:
    """Put the steps together."""
    enter = f"cd {shlex.quote(place.directory)} && "
    commands = [enter + steps[0].command, *(step.command for step in steps[1:])]
    mistakes = [
        replace(mistake, step=index, command=mistake.command if index else enter + mistake.command)
        for index, step in enumerate(steps)
        for mistake in step.mistakes
    ]
    return Piece(
        family=family,
        title=title,
        asks=tuple(_ask(k, openings[k], [step.says[k] for step in steps]) for k in range(WORDINGS)),
        files=tuple(files),
        setup=setup,
        root_setup=root_setup,
        services=services,
        commands=tuple(commands),
        thoughts=tuple(step.thought for step in steps),
        checks=(*(check for step in steps for check in step.checks), *guards),
        initial_checks=initial_checks,
        mistakes=tuple(mistakes),
        truth=tuple(text for step in steps for text in step.truth),
    )


def _ask(wording: int, opening: str, sentences: list[str]) -> str:
    if len(sentences) == 1:
        return f"{opening} {sentences[0]}"
    if wording == 0:
        return "\n".join([opening, "", *(f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1))])
    if wording == 1:
        return " ".join([opening, *_connected(sentences)])
    return "\n".join([opening, "", *(f"- {sentence}" for sentence in sentences)])


def _connected(sentences: list[str]) -> list[str]:
    middle = [_CONNECTORS[1 + n % 3] for n in range(len(sentences) - 2)]
    connectors = [_CONNECTORS[0], *middle, _CONNECTORS[-1]]
    return [
        connector + sentence[0].lower() + sentence[1:]
        for connector, sentence in zip(connectors, sentences, strict=True)
    ]
