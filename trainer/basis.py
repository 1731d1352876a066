"""What a result depends on, recorded in the store when its run is opened and held against what is asked for later.

Invariants:
- A run goes on only with the basis that it began with: what another policy, other settings or other tasks gave is never
  taken for the result of what is asked for.
- A policy is known by its files, wherever they lie; a model behind an endpoint by its name and its address.
- How fast a run is done is no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from runtime.agent.settings import AgentSettings
from runtime.errors import UserError
from runtime.store import Store
from runtime.task import read_task

SCHEMA = 1
SHOWN = 3
"""Differences that a refusal names; the rest is counted."""
_POLICY_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer.json")

Overflow = Literal["grade", "exclude"]


class Player(msgspec.Struct, frozen=True, kw_only=True):
    """Who acts in the episodes."""

    model: str
    """For people: a name, or the directory of a policy."""
    weights: str = ""
    """Digest of the policy's files; empty for a model behind an endpoint, and for a policy in training."""
    served_by: str = ""
    """`endpoint`, or the engine: `torch`, `sglang`."""
    address: str = ""
    """Of the endpoint."""
    chat_format: str = ""

    @property
    def known_by(self) -> tuple[str, ...]:
        return (self.weights,) if self.weights else (self.model, self.address)

    def shown(self) -> str:
        if self.weights:
            return f"'{self.model}' (weights {self.weights[:12]})"
        return f"'{self.model}'" + (f" at {self.address}" if self.address else "")


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """All that a result depends on, chance and versions of this program apart."""

    schema: int = SCHEMA
    player: Player
    engine: str
    settings: dict[str, Any]
    context_overflow: Overflow
    attempts: int
    seed: int
    tasks: dict[str, str]
    """Hash by name."""


def basis_of(
    tasks: Sequence[Path],
    settings: AgentSettings,
    *,
    player: Player,
    engine: str,
    grade_overflow: bool,
    attempts: int,
    seed: int,
) -> Basis:
    """Reads every task. Raises: TaskInvalid."""
    return Basis(
        player=player,
        engine=engine,
        settings=settings.model_dump(mode="json"),
        context_overflow="grade" if grade_overflow else "exclude",
        attempts=attempts,
        seed=seed,
        tasks={task.name: read_task(task).hash() for task in tasks},
    )


def policy_digest(directory: Path) -> str:
    """Of the weights, the configuration and the tokeniser in a Hugging Face directory. Raises: UserError."""
    files = sorted({path for pattern in _POLICY_FILES for path in directory.glob(pattern)})
    if not any(path.suffix in (".safetensors", ".bin") for path in files):
        raise UserError(str(directory), "holds no weights (*.safetensors)", "Give a whole Hugging Face directory")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{file_digest(path)} {path.name}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of what is in it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def begin(store: Store, run_id: str, basis: Basis, *, command: str) -> None:
    """Open a run in its store, or go on with it.

    Raises: UserError when it began with another basis; StoreError.
    """
    run = await store.open_run(run_id, command=command, settings=msgspec.json.encode(basis).decode())
    _require_same(run.settings, basis, store.path.parent)


async def require_same(place: Path, run_id: str, basis: Basis) -> None:
    """Before anything is begun: refuse what `begin` would refuse. Raises: UserError, StoreError."""
    if place.is_file():
        async with Store(place) as store:
            recorded = [run.settings for run in await store.runs() if run.run == run_id]
        for settings in recorded:
            _require_same(settings, basis, place.parent)


def _require_same(recorded: str, asked: Basis, out: Path) -> None:
    if found := _differences(recorded, asked, out):
        shown = "; ".join(found[:SHOWN]) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
        raise UserError(str(out), f"holds a run of something else: {shown}", "Choose another --out")


def _differences(recorded: str, asked: Basis, out: Path) -> list[str]:
    written = msgspec.json.decode(recorded, type=dict[str, Any])
    if "schema" not in written:
        return _unlike_schema_0(written, asked)
    if written["schema"] > SCHEMA:
        raise UserError(
            str(out), f"holds a run of schema {written['schema']}, this program reads up to {SCHEMA}", "Update it"
        )
    began = msgspec.convert(written, Basis)
    other = began.player.known_by != asked.player.known_by
    return [
        *([f"model was {began.player.shown()} and is now {asked.player.shown()}"] if other else []),
        *_unlike(_numbers(began), _numbers(asked)),
        *_unlike_tasks(began.tasks, asked.tasks),
    ]


def _unlike_schema_0(settings: dict[str, Any], asked: Basis) -> list[str]:
    """A run of an earlier program recorded the agent's settings and nothing else."""
    return _unlike(_prefixed(settings), _prefixed(asked.settings))


def _numbers(basis: Basis) -> dict[str, Any]:
    return {
        "serving engine": basis.player.served_by,
        "chat format": basis.player.chat_format,
        "sandbox engine": basis.engine,
        **_prefixed(basis.settings),
        "context_overflow": basis.context_overflow,
        "attempts": basis.attempts,
        "seed": basis.seed,
    }


def _prefixed(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"settings.{name}": value for name, value in settings.items()}


def _unlike(began: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    names = [name for name in began | asked if began.get(name) != asked.get(name)]
    return [f"{name} was {began.get(name)!r} and is now {asked.get(name)!r}" for name in names]


def _unlike_tasks(began: dict[str, str], asked: dict[str, str]) -> list[str]:
    told = {True: "is no longer asked for", False: "was not in it"}
    return [
        f"task '{name}' {'has other content' if name in began and name in asked else told[name in began]}"
        for name in sorted(began | asked)
        if began.get(name) != asked.get(name)
    ]
