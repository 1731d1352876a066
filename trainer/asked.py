"""What is asked of the trainer, as plain data: by a command in its own process, or as a job of the daemon.

Invariants:
- All paths are absolute. The recipe travels whole, so that a file that is edited later changes no run.
- Light: nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import ValidationError

from runtime.agent.settings import AgentSettings
from runtime.errors import UserError

Command = Literal["evaluate", "rollout"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Base of both."""

    out: str
    engine_urls: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """As a job of the daemon takes them."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class TrainAsked(Asked, frozen=True, kw_only=True):
    """A run of training."""

    recipe: dict[str, Any]
    model: str
    tasks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    demonstrations: tuple[str, ...] = ()
    resume: bool = False


class PlayAsked(Asked, frozen=True, kw_only=True):
    """Episodes: a policy by its recipe, or without one the chat endpoint of the settings."""

    command: Command
    tasks: tuple[str, ...]
    recipe: dict[str, Any] | None = None
    policy: str | None = None
    attempts: int = 1
    limits: dict[str, float] = {}
    """Of the agent: `max_turns`, `temperature`, where they were given."""


Model = TypeVar("Model", bound=Asked)


def train_asked(options: Mapping[str, Any]) -> TrainAsked:
    """Raises: UserError for options that are none."""
    return _read(options, TrainAsked)


def play_asked(options: Mapping[str, Any]) -> PlayAsked:
    """Raises: UserError for options that are none."""
    return _read(options, PlayAsked)


def run_id(command: str, out: Path) -> str:
    """The same for a run and its resumption."""
    return f"{command}-{key_of(out)}"


def key_of(out: Path) -> str:
    return hashlib.sha256(os.fsencode(out.absolute())).hexdigest()[:12]


def claim(out: Path, *, resume: bool) -> None:
    """A new run of training starts in an empty directory. Raises: UserError."""
    require_directory(out)
    begun, present = (out / "recipe.json").exists(), out.exists() and any(out.iterdir())
    if resume and not begun:
        raise UserError(str(out), "holds no run that could be resumed", "Leave out --resume")
    if present and not resume:
        remedy = "Use --resume, or choose another --out" if begun else "Choose an empty or new directory as --out"
        raise UserError(str(out), "is not empty", remedy)


def require_directory(out: Path) -> None:
    """It is a directory, or can become one. Raises: UserError."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(str(there), "is a file, and no directory", "Choose another --out")


def require_limits(limits: Mapping[str, float]) -> None:
    """Values that an agent can have. Raises: UserError."""
    try:
        AgentSettings.model_validate(limits)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        why = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(option, f"{first['input']:g} is refused: {why}", "Give another one, or leave it out") from None


def require_policy(asked: PlayAsked) -> Path:
    """The directory of the policy that the recipe is for. Raises: UserError."""
    if asked.policy is None:
        raise UserError("policy", "is not given", "Give the directory of the recipe's policy")
    return Path(asked.policy)


def require_absolute(name: str, *paths: str | None) -> None:
    """Raises: UserError."""
    for path in paths:
        if path is not None and not Path(path).is_absolute():
            raise UserError(name, f"'{path}' is no absolute path", "A job names each path in full")


def _read(options: Mapping[str, Any], model: type[Model]) -> Model:
    try:
        return msgspec.convert(dict(options), model)
    except msgspec.ValidationError as error:
        raise UserError("options", str(error), "See trainer/asked.py for what a job takes") from None
