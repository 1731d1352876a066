"""Steps that write one report, and the mistakes that fit all of them: put in the wrong place, or not put anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from generators.messages import ErrorType, Mistake
from generators.procedural.checks import lines_are
from generators.procedural.family import Place
from generators.procedural.steps import Step, slip

_PLACES = (
    ("/tmp", "A scratch file will do for now; where exactly it lies hardly matters."),
    ("~", "My home directory is the natural place for a result."),
    ("..", "I put the result beside the folder, where it is easier to find."),
)


def misplaced(command: str, name: str) -> Mistake:
    """The same command with its result `name` redirected to another directory than the one asked for."""
    directory, reason = _PLACES[len(command) % len(_PLACES)]
    return slip("requirement_violation", command.replace(f"> {name}", f"> {directory}/{name}"), reason)


def only_shown(command: str, name: str) -> Mistake:
    """The same command with its result on the screen instead of in `name`."""
    reason = "The right answer is on the screen, so the work is done."
    return slip("verification_failure", command.replace(f" > {name}", ""), reason)


def report(
    place: Place,
    file: str,
    lines: Sequence[str],
    command: str,
    *,
    says: tuple[str, str, str],
    thought: str,
    slips: Sequence[tuple[ErrorType, str, str]],
) -> Step:
    """A step in which the output of `command` becomes `file`, whose lines are known.

    `slips` are wrong commands (error type, command, reason) whose output becomes the file instead.
    """
    full = f"{command} > {file}"
    wrong = [slip(kind, f"{bad} > {file}", reason) for kind, bad, reason in slips]
    return Step(
        says=says,
        thought=thought,
        command=full,
        checks=(lines_are(f"{place.directory}/{file}", lines),),
        mistakes=(*wrong, misplaced(full, file), only_shown(full, file)),
        truth=("\n".join(lines),) if _telling(lines) else (),
    )


def _telling(lines: Sequence[str]) -> bool:
    """Whether the answer as a whole can be in no input and in no other file by chance."""
    return len(lines) > 1 and sum(map(len, lines)) >= 16
