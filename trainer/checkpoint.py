"""Checkpoints: complete or absent.

A checkpoint is a directory `step-00000012` that appears by one rename, after everything in it is on disk; its
`manifest.json`, written last, holds the hash of every file. The newest one whose hashes hold is the one to resume
from; at least two are kept. The learner's state and the journal of what was trained (`trained.txt`, one sample id a
line) are in the same checkpoint: a resumed run trains on what is missing, and on nothing twice. Those of fine-tuning
hold weights and moments alone: its order follows from the seed.

Weights and moments are written by `torch.distributed.checkpoint`, each process its own part, into a directory that all
of them see; a run may go on with another number of processes than it was saved by.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor, nn

from runtime.errors import RuntimeFault
from trainer.model import save_model
from trainer.parallel import Team
from trainer.ppo import Learner

log = structlog.get_logger()

SCHEMA = 2
"""1 was a single file of one process."""
STATE = "learner"
_TRAINED = "trained.txt"

Part = tuple[nn.Module, torch.optim.Optimizer, str]
"""What is trained, by what, and its name among the tensors of a checkpoint."""


class CheckpointInvalid(RuntimeFault):
    """A checkpoint cannot be used."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.directory, self.reason = directory, reason
        super().__init__(f"{directory}: {reason}")


class CheckpointForeign(CheckpointInvalid):
    """A checkpoint of another version of this program: whole, and not to be read here."""

    def __init__(self, directory: Path, schema: int) -> None:
        age = "a newer" if schema > SCHEMA else "an older"
        super().__init__(directory, f"made by {age} version (schema {schema}, this one reads {SCHEMA})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a run goes on from."""

    directory: Path
    version: int
    trained: frozenset[str]
    extra: dict[str, Any]


def save_checkpoint(
    root: Path, learner: Learner, *, version: int, trained: Iterable[str], extra: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write a checkpoint of the learner at a version and remove the oldest beyond `keep`.

    Raises: OSError when the disk is full: nothing appears.
    """

    def fill(directory: Path) -> dict[str, Any]:
        save_model(learner.policy, directory / "policy")
        save_state(learner, directory / STATE)
        (directory / _TRAINED).write_text("".join(f"{name}\n" for name in sorted(trained)))
        counters = {"updates": learner.updates, "skips": learner.skips, "steps": learner.steps}
        return {"learner": counters, "extra": dict(extra)}

    return write_checkpoint(root, version, fill, keep=keep)


def write_checkpoint(root: Path, version: int, fill: Callable[[Path], Mapping[str, Any]], *, keep: int = 2) -> Path:
    """Let `fill` write into a directory, which then appears whole under its version; what it returns is kept in the
    manifest. The oldest beyond `keep` are removed.

    Raises: OSError when the disk is full: nothing appears.
    """
    if keep < 2:
        raise ValueError("at least two checkpoints are kept: the newest may turn out to be damaged")
    final = root / f"step-{version:08d}"
    temporary = root / f".{final.name}.{os.getpid()}"
    for left in root.glob(".step-*"):  # by a writer that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        said = fill(temporary)
        files = {str(p.relative_to(temporary)): synced_digest(p) for p in sorted(temporary.rglob("*")) if p.is_file()}
        manifest = {"schema": SCHEMA, "version": version, "files": files, **said}
        _write(temporary / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True).encode())
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in [path for path in _all(root) if path <= final][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint; damaged ones are passed over, which is told. None when there never was one.

    Raises: CheckpointInvalid when all are damaged, CheckpointForeign: to begin again beside them would undo the run.
    """
    damaged: list[CheckpointInvalid] = []
    for directory in reversed(_all(root)):
        try:
            found = read_checkpoint(directory)
        except CheckpointForeign:
            raise
        except CheckpointInvalid as error:
            damaged.append(error)
            continue
        for other in damaged:
            log.warning("checkpoint passed over", directory=str(other.directory), reason=other.reason)
        return found
    if damaged:
        raise CheckpointInvalid(
            damaged[0].directory, f"{damaged[0].reason}, and no other checkpoint is whole: train into another directory"
        )
    return None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Check a checkpoint and read what is not tensors. Raises: CheckpointInvalid."""
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        if manifest["schema"] != SCHEMA:
            raise CheckpointForeign(directory, manifest["schema"])
        for name, digest in manifest["files"].items():
            if synced_digest(directory / name) != digest:
                raise CheckpointInvalid(directory, f"{name} is damaged")
        listed = _TRAINED in manifest["files"]
        trained = frozenset((directory / _TRAINED).read_text().splitlines() if listed else ())
        extra = manifest.get("extra", {})
        return Checkpoint(directory=directory, version=manifest["version"], trained=trained, extra=extra)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointInvalid(directory, f"incomplete: {error}") from error


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a learner of the same shape back to where it was; every process of a team takes part.

    Raises: CheckpointInvalid when the shapes differ.
    """
    learner.team.tell("restore", checkpoint=checkpoint)
    read_tensors(list(_parts(learner)), checkpoint.directory / STATE, learner.team)
    learner.bring()
    counters = json.loads((checkpoint.directory / "manifest.json").read_bytes())["learner"]
    learner.updates, learner.skips, learner.steps = counters["updates"], counters["skips"], counters["steps"]


def save_state(learner: Learner, directory: Path) -> None:
    """Write weights and moments; every process of a team takes part. Raises: OSError."""
    learner.team.tell("save", directory=directory)
    write_tensors(list(_parts(learner)), directory, learner.team)


def write_tensors(parts: Sequence[Part], directory: Path, team: Team) -> None:
    """Write weights and moments; every process of a team takes part. Raises: OSError."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with _quietly():
        save(_state(parts), checkpoint_id=directory, no_dist=team.size == 1)


def read_tensors(parts: Sequence[Part], directory: Path, team: Team) -> None:
    """Read weights and moments back; every process of a team takes part.

    Raises: CheckpointInvalid when they do not fit.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with _quietly():
            saved = FileSystemReader(directory).read_metadata().state_dict_metadata.keys()
            for model, optimiser, name in parts:
                _make_room(model, optimiser, name, saved)
            state = _state(parts)
            _same_names(saved, state)
            load(state, checkpoint_id=directory, no_dist=team.size == 1)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointInvalid(directory.parent, f"does not fit this model: {error}") from error


def _same_names(saved: Collection[str], state: Collection[str]) -> None:
    """Raises: ValueError when one has what the other has not."""
    if unlike := sorted({*saved} ^ {*state}):
        raise ValueError(f"{unlike[0]} is in one of them only")


def _parts(learner: Learner) -> Iterator[Part]:
    yield learner.trained, learner.policy_optimiser, "policy"
    if learner.critic is not None and learner.critic_optimiser is not None:
        yield learner.critic, learner.critic_optimiser, "critic"


def _state(parts: Iterable[Part]) -> dict[str, Tensor]:
    """Weights and moments by name; the tensors are the modules' own."""
    state: dict[str, Tensor] = {}
    for model, optimiser, part in parts:
        for name, weight in model.named_parameters():
            state[f"{part}.{name}"] = weight.detach()
            state |= {f"{part}.{name}/{moment}": value for moment, value in optimiser.state.get(weight, {}).items()}
    return state


def _make_room(model: nn.Module, optimiser: torch.optim.Optimizer, part: str, saved: Iterable[str]) -> None:
    """Tensors for the moments that a checkpoint holds, and for no others: an optimiser that has made no step has
    none."""
    optimiser.state.clear()
    saved = frozenset(saved)
    for name, weight in model.named_parameters():
        if f"{part}.{name}/step" in saved:
            moments = {moment: torch.zeros_like(weight.detach()) for moment in ("exp_avg", "exp_avg_sq")}
            optimiser.state[weight] = {"step": torch.zeros(()), **moments}


@contextmanager
def _quietly() -> Iterator[None]:
    """One process alone is no reason for a warning; a failure is what went wrong first, not a collection."""
    from torch.distributed.checkpoint.api import CheckpointException

    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def _all(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("step-*") if p.is_dir())


def synced_digest(path: Path) -> str:
    """Hash of a file, which is on disk when this returns."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
