"""A task family: draws one piece of work from a random stream, and knows everything about it by construction.

A task is one or more pieces in their own directories, put together by `generators.procedural.compose`. A piece of depth d takes
about d commands. All text that a family writes is deterministic in its random stream: no clock, no set order, no host state.
Names and data are drawn wide enough that two seeds never give the same piece.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from generators.messages import Mistake
from sandbox.services import Service
from sandbox.spec import File


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a piece lives: an absolute directory of its own under the agent's home."""

    directory: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of work."""

    family: str
    title: str
    """Two to five words for people."""
    asks: tuple[str, ...]
    """At least three wordings, each complete: absolute paths, exact output form, everything that is tested. As a person
    would write it; no commands, no answers."""
    files: tuple[File, ...]
    """Absolute paths below the place's directory, owner agent."""
    setup: tuple[str, ...] = ()
    """Shell commands run as the agent user while the image is built, cwd = the place's directory, after the files are there
    (`git init` with fixed dates, `sqlite3 < schema`). Offline, deterministic."""
    root_setup: tuple[str, ...] = ()
    """Shell commands run as root before `setup`: what only root may prepare for a service."""
    services: tuple[Service, ...] = ()
    """What runs while the agent works and while the checks look. Keep its files and its port to the place."""
    commands: tuple[str, ...] = ()
    """The reference: run in order in one persistent shell that starts in the agent's home. No here-documents over 40 lines."""
    thoughts: tuple[str, ...] = ()
    """One per command."""
    checks: tuple[str, ...] = ()
    """Sources of pytest functions over the end state (`def test_...() -> None:`), unique names, standard library and the helpers of
    `generators.procedural.prelude` only. At least one fails by AssertionError on the untouched environment; none raises
    anything else there or on any wrong answer. They check the outcome, never the commands used."""
    initial_checks: tuple[str, ...] = ()
    """Sources of pytest functions over the starting state: inputs are there, outputs are not."""
    mistakes: tuple[Mistake, ...] = ()
    """At least three, over at least two error types; `step` counts within this piece. Running the mistake in place of its step, the
    rest of the reference unchanged and no repair, must leave at least one check failing."""
    truth: tuple[str, ...] = ()
    """Literal answers (at least 6 characters, or leave them out) that must be neither in the asks nor in the files."""


class Family(Protocol):
    """One family. Stateless; registered in `generators.procedural.library`."""

    name: str
    """Lower-case words joined by hyphens: `csv-filter`."""
    category: str
    """A category of `generators/taxonomy.toml`, e.g. `data processing`."""
    tools: tuple[str, ...]
    """Programs that the reference uses."""
    depths: range
    """Depths it can draw, within range(1, 6)."""

    def draw(self, rng: random.Random, depth: int, place: Place) -> Piece:
        """Draw a piece of this depth."""
        ...
