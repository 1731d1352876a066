"""What a run of training began with: kept in its directory, and held against what a later start there is given.

Invariants:
- A run goes on only with the recipe, model, tasks and demonstrations that it began with: anything else would make one
  curve of two runs.
- Written whole, before anything is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runtime.errors import UserError
from runtime.task import read_task
from trainer.basis import file_digest, policy_digest
from trainer.recipe import Recipe

if TYPE_CHECKING:
    from trainer.training import Inputs

RECIPE, INPUTS = "recipe.json", "inputs.json"
_OPTIONS = {"model": "--model", "tasks": "--tasks", "held_out": "--held-out", "demonstrations": "--demonstrations"}


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs by what is in them: names and hashes."""

    model: str
    """Digest of its files."""
    tasks: dict[str, str]
    held_out: dict[str, str]
    demonstrations: dict[str, str]


def identify(inputs: Inputs) -> Known:
    """Read what a run is given. Raises: UserError, TaskInvalid, OSError."""
    return Known(
        model=policy_digest(inputs.model),
        tasks=_tasks(inputs.tasks),
        held_out=_tasks(inputs.held_out),
        demonstrations={str(n): file_digest(path) for n, path in enumerate(inputs.demonstrations)},
    )


def record(recipe: Recipe, known: Known, out: Path) -> None:
    """Write both into the run's directory, or hold them against those there. Raises: UserError."""
    asked = msgspec.to_builtins(recipe)
    began = _kept(out / RECIPE, asked)
    if began != asked:
        raise UserError(
            str(out),
            f"holds a run of another recipe: {', '.join(unlike(began, asked))} changed",
            "Choose another --out, or run the recipe it began with",
        )
    given = msgspec.to_builtins(known)
    before = _kept(out / INPUTS, given)
    for part, option in _OPTIONS.items():
        if changed := unlike({part: before.get(part)}, {part: given[part]}):
            shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            raise UserError(
                option,
                f"is not what the run in {out} began with ({shown})",
                "Give the same again, or choose another --out",
            )


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> Sequence[str]:
    """Keys, dotted in inner tables, under which two tables differ."""
    found: list[str] = []
    for key in sorted({*first, *second}):
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += [f"{key}.{inner}" for inner in unlike(one, other)]
        elif one != other:
            found.append(key)
    return found


def _kept(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What the file holds; it is written where there is none. Raises: UserError."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".partial")
        fresh.write_text(json.dumps(given, indent=1, sort_keys=True), encoding="utf-8")
        fresh.rename(path)
    try:
        kept: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(str(path), f"cannot be read: {error}", "Choose another --out") from None
    return kept


def _tasks(directories: Sequence[Path]) -> dict[str, str]:
    return {path.name: read_task(path).hash() for path in directories}
