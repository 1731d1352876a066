"""Checkpoints: complete or absent.

A checkpoint is a directory `step-00000012` that appears by one rename, after everything in it is on disk; its
`manifest.json`, written last, holds the hash of every file. The newest one whose hashes hold is the one to resume
from; at least two are kept. The learner's state and the journal of what was trained (`trained.txt`, one sample id a
line) are in the same checkpoint: a resumed run trains on what is missing, and on nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.model import save_model
from trainer.ppo import Learner

SCHEMA = 1


class CheckpointInvalid(Exception):
    """A checkpoint cannot be used."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.directory, self.reason = directory, reason
        super().__init__(f"{directory}: {reason}")


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
    if keep < 2:
        raise ValueError("at least two checkpoints are kept: the newest may turn out to be damaged")
    final = root / f"step-{version:08d}"
    temporary = root / f".{final.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save_model(learner.policy, temporary / "policy")
        torch.save(_state(learner), temporary / "learner.pt")
        (temporary / "trained.txt").write_text("".join(f"{name}\n" for name in sorted(trained)))
        files = {str(p.relative_to(temporary)): _digest(p) for p in sorted(temporary.rglob("*")) if p.is_file()}
        manifest = {"schema": SCHEMA, "version": version, "extra": dict(extra), "files": files}
        _write(temporary / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True).encode())
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in _all(root)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint; damaged ones are passed over. None when there is none."""
    for directory in reversed(_all(root)):
        try:
            return read_checkpoint(directory)
        except CheckpointInvalid:
            continue
    return None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Check a checkpoint and read what is not tensors. Raises: CheckpointInvalid."""
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        if manifest["schema"] > SCHEMA:
            raise CheckpointInvalid(
                directory, f"made by a newer version (schema {manifest['schema']}, this one reads {SCHEMA})"
            )
        for name, digest in manifest["files"].items():
            if _digest(directory / name) != digest:
                raise CheckpointInvalid(directory, f"{name} is damaged")
        trained = frozenset((directory / "trained.txt").read_text().splitlines())
        return Checkpoint(directory=directory, version=manifest["version"], trained=trained, extra=manifest["extra"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointInvalid(directory, f"incomplete: {error}") from error


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a learner of the same shape back to where it was. Raises: CheckpointInvalid when the shapes differ."""
    state = torch.load(checkpoint.directory / "learner.pt", weights_only=True)
    try:
        learner.policy.load_state_dict(state["policy"])
        learner.policy_optimiser.load_state_dict(state["policy_optimiser"])
        if learner.critic is not None and learner.critic_optimiser is not None:
            learner.critic.load_state_dict(state["critic"])
            learner.critic_optimiser.load_state_dict(state["critic_optimiser"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointInvalid(checkpoint.directory, f"does not fit this model: {error}") from error
    learner.updates, learner.skips, learner.steps = state["updates"], state["skips"], dict(state["steps"])


def _state(learner: Learner) -> dict[str, Any]:
    state = {
        "policy": learner.policy.state_dict(),
        "policy_optimiser": learner.policy_optimiser.state_dict(),
        "updates": learner.updates,
        "skips": learner.skips,
        "steps": dict(learner.steps),
    }
    if learner.critic is not None and learner.critic_optimiser is not None:
        state |= {"critic": learner.critic.state_dict(), "critic_optimiser": learner.critic_optimiser.state_dict()}
    return state


def _all(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("step-*") if p.is_dir())


def _digest(path: Path) -> str:
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
