"""The directory a run writes into, and where that run's state lives.

Invariants:
- Nothing of anybody else's is overwritten: a new run starts in an empty directory, or one that does not exist.
- The state of a run that a live process works on stays, whatever became of its output.
- A resumed run has the output that it made before.
- The state of a run (its store) lies under the state directory, keyed by the absolute path of the output directory. So
  what was asked for is alone in the output directory, and a run that was killed is found again from its path.
- `manifest.json` is written last, atomically: with it, the output is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import UserError
from runtime.machine import writing
from runtime.store import live_owner

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 1
_PROBE = ".writable.partial"


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where one run reads and writes."""

    out: Path
    state: Path
    """Directory of the run's store and log."""

    @property
    def store(self) -> Path:
        return self.state / "store.sqlite"

    @property
    def run_id(self) -> str:
        """One name for a run, its sandboxes and its journal; the same after a resume."""
        return f"{self.state.parent.name}-{self.state.name}"


def place_of(out: Path, state_dir: Path, command: str = "generate") -> RunPlace:
    """The place of the run of `command` that writes into `out`."""
    absolute = Path(os.path.abspath(out))  # noqa: PTH100  (the path as named: links are not followed)
    key = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:12]
    return RunPlace(out=absolute, state=state_dir / command / key)


def prepare(place: RunPlace, *, resume: bool) -> None:
    """Make both directories ready for a new or a resumed run. Raises: UserError."""
    known = place.store.exists()
    present = _entries(place.out)
    if present is None and known and resume:
        raise UserError(str(place.out), "was deleted, with what the run had written", "Leave out --resume")
    if present is None and not resume:
        if (pid := live_owner(place.store, place.run_id)) is not None:
            raise UserError(str(place.out), f"was deleted while process {pid} writes into it", "Wait for it, or end it")
        shutil.rmtree(place.state, ignore_errors=True)  # its output was deleted
        known = False
    if resume and not known:
        raise UserError(str(place.out), "no run that could be resumed wrote here", "Leave out --resume")
    if present and not resume:
        raise _occupied(place, known=known)
    if known and not resume:
        raise UserError(str(place.out), "an earlier run into it was not finished", "Use --resume, or delete it")
    _make_writable(place.state, "Choose another state directory (TERMLOOM_STATE)")
    _make_writable(place.out, "Choose another --out")


def write_manifest(place: RunPlace, content: dict[str, Any]) -> None:
    """Write `manifest.json`: the same content gives the same bytes."""
    text = json.dumps({"schema_version": MANIFEST_SCHEMA, **content}, indent=2, ensure_ascii=False) + "\n"
    fresh = place.out / f".{MANIFEST}.partial"
    with writing(fresh), fresh.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    fresh.rename(place.out / MANIFEST)


def _entries(out: Path) -> list[str] | None:
    try:
        return [name for name in os.listdir(out) if name != _PROBE]  # noqa: PTH208  (names are enough)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise UserError(str(out), "is no directory", "Choose another --out") from None
    except OSError as error:
        raise UserError(str(out), f"cannot be read: {error.strerror}", "Choose another --out") from None


def _occupied(place: RunPlace, *, known: bool) -> UserError:
    if (place.out / MANIFEST).exists():
        return UserError(
            str(place.out), "holds the output of a finished run", "Choose another --out, or delete it first"
        )
    if known:
        return UserError(str(place.out), "holds the output of an unfinished run", "Use --resume, or delete it")
    return UserError(str(place.out), "holds files that are not ours", "Choose an empty or new directory as --out")


def _make_writable(directory: Path, remedy: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / _PROBE
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(str(directory), f"cannot be written: {error.strerror}", remedy) from None
