"""What a procedural player knows of a task: the way to do it, and the typical mistakes on that way.

A task of our own families is composed again from the seed and index in its certificate, and used when the outcome is
the very task. Any other task is known by its `solution/solve.sh`, cut into the commands that bash would read one after
the other; its comments are the thoughts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from generators.assemble import SOLUTION, solve_script
from generators.certificate import CertificateInvalidError, read_certificate
from generators.messages import Mistake
from generators.procedural.compose import ProceduralTask, compose
from generators.roles import RoleFailed
from generators.taxonomy import load_taxonomy
from runtime.errors import UserError
from runtime.task import Task
from sandbox.engine import Sandbox

_CUT = r"""
text=
while IFS= read -r line || [ -n "$line" ]; do
  text+=$line$'\n'
  [[ $line == *\\ ]] && continue
  complaint=$(bash -n 2>&1 <<<"$text") && [ -z "$complaint" ] || continue
  printf '%s\0' "$text"
  text=
done
printf '%s' "$text"
"""
"""Prints each complete command list of standard input, ended by NUL. A here-document without its end is a complaint."""
_CUT_TIMEOUT_S = 30.0
_NO_PART = re.compile(r"set\s+[-+][\w\s-]*|exit(\s+0)?|trap\b.*")
"""Lines of a script that would end a session, or mean nothing in it: options, traps, the exit."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One command of the way, and what one thinks before it."""

    command: str
    thought: str
    step: int | None = None
    """Its place in the reference; None for a repair."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """The way to do the task."""

    moves: tuple[Move, ...]
    mistakes: tuple[Mistake, ...] = ()
    """`step` counts within `moves`."""


async def script_of(task: Task, sandbox: Sandbox) -> Script:
    """Raises: RoleFailed for a task without a solution; SandboxError."""
    composed = composed_again(task)
    if composed is None:
        return await _cut(task, sandbox)
    reference = composed.reference
    pairs = zip(reference.commands, reference.thoughts, strict=True)
    moves = (Move(command=command, thought=thought, step=step) for step, (command, thought) in enumerate(pairs))
    return Script(moves=tuple(moves), mistakes=composed.mistakes)


def composed_again(task: Task) -> ProceduralTask | None:
    """The task as its families make it; None when it is not theirs, or not as they make it today."""
    try:
        certificate = read_certificate(task)
    except CertificateInvalidError:
        return None
    metadata: dict[str, Any] = task.config.metadata
    if certificate.versions.players != "procedural":
        return None
    drawn: dict[str, Any] = metadata.get("termloom", {})
    # Each choice of a draw has its own random stream: asking for what was drawn draws the same again.
    try:
        blueprint = load_taxonomy().draw_item(
            certificate.item_seed,
            certificate.index,
            categories=[drawn["drawn_category"]],
            levels=[drawn["level"]],
            style=drawn["style"],
            families=tuple(drawn["families"]),
        )
    except (UserError, KeyError, TypeError):
        return None
    composed = compose(blueprint)
    same = composed.draft.instruction.rstrip("\n") == task.instruction.rstrip("\n") and solve_script(
        composed.reference.commands
    ).decode() == task.text(SOLUTION)
    return composed if same else None


async def _cut(task: Task, sandbox: Sandbox) -> Script:
    solution = task.text(SOLUTION)
    if solution is None:
        raise RoleFailed("generator", "no_solution", f"{SOLUTION} is missing, and no task family makes this task")
    done = await sandbox.exec(["/bin/bash", "-c", _CUT], stdin=solution.encode(), timeout_s=_CUT_TIMEOUT_S)
    parts = done.stdout.decode(errors="replace").split("\0")
    moves = tuple(_moves(parts))
    if done.exit_code != 0 or not moves:
        raise RoleFailed("generator", "no_solution", f"{SOLUTION} holds no command that can be read")
    return Script(moves=moves)


def _moves(parts: Sequence[str]) -> list[Move]:
    moves: list[Move] = []
    comments: list[str] = []
    for part in parts:
        lines = part.strip("\n").split("\n")
        while lines and (not lines[0].strip() or lines[0].lstrip().startswith("#")):
            comments.append(lines.pop(0).strip().lstrip("#!").strip())
        command = "\n".join(lines).rstrip()
        if not command or _NO_PART.fullmatch(command):
            comments = comments if not command else []
            continue
        thought = " ".join(comment for comment in comments if comment and not comment.startswith("/"))
        moves.append(Move(command=command, thought=thought or _plain_thought(command), step=len(moves)))
        comments = []
    return moves


def _plain_thought(command: str) -> str:
    words = command.split()
    named = f"`{words[0]}`" if re.fullmatch(r"[\w./-]+", words[0]) else "a short script"
    return f"The next thing to do takes {named}."
