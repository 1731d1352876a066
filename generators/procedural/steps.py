"""Pieces put together from steps: what is asked, how it is done, what shows that it was done, how it goes wrong.

A family that is a chain of sub-tasks draws a `Step` for each and hands them to `assemble`. Invariants: a step's three wordings
each state all that its checks look at; the first step alone brings three slips over two error types, so that every depth has
enough of them; each slip, with no repair and the later steps unchanged, leaves a check failing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from generators.messages import ErrorType, Mistake
from generators.procedural.family import Piece, Place
from sandbox.spec import File

Wordings = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Slip:
    """A typical wrong turn at a step."""

    error: ErrorType
    command: str
    reason: str
    repair: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One sub-task: one command of the reference."""

    says: Wordings
    command: str
    thought: str
    checks: tuple[str, ...] = ()
    slips: tuple[Slip, ...] = ()
    outputs: tuple[str, ...] = ()
    """Paths that do not exist before it."""
    truth: tuple[str, ...] = ()


def assemble(
    *,
    family: str,
    title: str,
    place: Place,
    intros: Wordings,
    steps: Sequence[Step],
    files: Sequence[File],
    setup: tuple[str, ...] = (),
    guards: Sequence[str] = (),
) -> Piece:
    """A piece that asks for all steps in order. The first wording flows, the second is a list, the third flows."""
    asks = tuple(
        _joined(intro, [step.says[wording] for step in steps], listed=wording == 1 and len(steps) > 1)
        for wording, intro in enumerate(intros)
    )
    outputs = [path for step in steps for path in step.outputs]
    return Piece(
        family=family,
        title=title,
        asks=asks,
        files=tuple(files),
        setup=setup,
        commands=tuple(step.command for step in steps),
        thoughts=tuple(step.thought for step in steps),
        checks=(*(check for step in steps for check in step.checks), *guards),
        initial_checks=(_start(place, [file.path for file in files], outputs),),
        mistakes=tuple(_mistakes(steps)),
        truth=tuple(text for step in steps for text in step.truth if len(text) >= 6),
    )


def test(place: Place, name: str, *body: str) -> str:
    """Source of one test function about this place."""
    lines = [line for part in body for line in part.splitlines()]
    return f"def test_{tag(place)}_{name}() -> None:\n" + "".join(f"    {line}\n" for line in lines)


def same_lines(place: Place, name: str, path: str, expected: Sequence[str]) -> str:
    """A test that the file at `path` holds exactly these lines."""
    return test(place, name, f"assert read_lines({path!r}) == {list(expected)!r}")


def unchanged(place: Place, name: str, *files: File) -> str:
    """A guard that these input files are what they were."""
    pairs = {file.path: hashlib.sha256(file.data).hexdigest() for file in files}
    return test(
        place,
        name,
        "import hashlib",
        f"for path, digest in {pairs!r}.items():",
        '    assert hashlib.sha256(read_bytes(path)).hexdigest() == digest, f"{path} was changed"',
    )


def text_file(path: str, text: str, mode: int = 0o644) -> File:
    """A text file of the agent's."""
    return File(path=path, data=text.encode(), mode=mode, owner="agent")


def tag(place: Place) -> str:
    """The place's last name as part of an identifier."""
    return re.sub(r"\W", "_", place.directory.rstrip("/").rsplit("/", 1)[-1])


def _joined(intro: str, sentences: Sequence[str], *, listed: bool) -> str:
    if listed:
        return "\n".join([intro, *(f"- {sentence}" for sentence in sentences)])
    return " ".join([intro, *sentences])


def _start(place: Place, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    body = [f"for path in {list(inputs)!r}:", "    read_bytes(path)"]
    if outputs:
        body += [f"for path in {list(outputs)!r}:", '    assert not os.path.lexists(path), f"{path} is there already"']
    return test(place, "starts_as_described", *body)


def _mistakes(steps: Sequence[Step]) -> list[Mistake]:
    return [
        Mistake(error_type=slip.error, command=slip.command, step=number, reason=slip.reason, repair=slip.repair)
        for number, step in enumerate(steps)
        for slip in step.slips
    ]
