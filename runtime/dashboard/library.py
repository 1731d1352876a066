"""What can be looked at in a folder: task directories, trajectories, curves.

Invariants:
- A name in an address is looked up among what the folder lists; nothing is ever joined to a path unseen.
- What is read is bounded, and shown as text: it was written by models, agents and strangers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from runtime.errors import TaskInvalid, TrajectoryInvalid, UserError
from runtime.task import Task, read_task
from runtime.trajectory import Trajectory, decode

MOST_TASKS = 2000
MOST_TRAJECTORIES = 5000
MOST_POINTS = 400
"""Of a curve: more are thinned out."""
_TEXT_LIMIT = 200_000
METRICS = "metrics.jsonl"
_FILES = ("*.jsonl", "evaluations/*/trajectories.jsonl")


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task in a list."""

    name: str
    title: str
    category: str
    difficulty: str
    problem: str = ""


class TrajectoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory in a list."""

    number: int
    task: str
    source: str
    turns: int
    failure: str
    reward: float | None
    mistakes: int


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over the lines of a metrics file."""

    name: str
    unit: str
    """Of the axis across: `s` or `steps`."""
    points: tuple[tuple[float, float], ...]


class Library:
    """One folder. Methods block on the file system: call them in a worker thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tasks(self) -> list[TaskLine]:
        """Task directories in it, or the folder itself where it is one."""
        return [_task_line(path) for path in self._task_directories()]

    def task(self, name: str) -> Task:
        """Raises: UserError when there is none of that name, TaskInvalid."""
        for path in self._task_directories():
            if path.name == name:
                return read_task(path)
        raise UserError(str(self.folder), f"has no task '{name}'", "Choose one that is listed")

    def trajectory_files(self) -> list[str]:
        """Files of trajectories, one a line, by the first line of each; those of a run's evaluations too."""
        return [self._name(path) for path in self._json_lines() if _is_trajectories(path)]

    def trajectories(self, file: str) -> list[TrajectoryLine]:
        """Raises: UserError, TrajectoryInvalid."""
        lines = itertools.islice(enumerate(self._lines(file)), MOST_TRAJECTORIES)
        return [_trajectory_line(number, decode(line, source=file)) for number, line in lines]

    def trajectory(self, file: str, number: int) -> Trajectory:
        """Raises: UserError, TrajectoryInvalid."""
        line = next(itertools.islice(self._lines(file), number, None), None)
        if line is None:
            raise UserError(file, f"has no line {number}", "Choose one that is listed")
        return decode(line, source=f"{file}:{number + 1}")

    def curves(self) -> list[Curve]:
        """Every number in the metrics file, over `step` where there is one, else over seconds since its start."""
        metrics = self.folder / METRICS
        if not metrics.is_file():
            return []
        with metrics.open("rb") as file:
            rows = [row for row in map(_numbers, file) if row]
        return _curves(rows)

    def _task_directories(self) -> list[Path]:
        if (self.folder / "task.toml").is_file():
            return [self.folder]
        return sorted(path.parent for path in itertools.islice(self.folder.glob("*/task.toml"), MOST_TASKS))

    def _json_lines(self) -> list[Path]:
        if self.folder.is_file():
            return [self.folder]
        found = sorted(path for pattern in _FILES for path in self.folder.glob(pattern))
        return [path for path in found if path.is_file() and path.name != METRICS]

    def _lines(self, file: str) -> Iterator[bytes]:
        for path in self._json_lines():
            if self._name(path) == file:
                with path.open("rb") as opened:
                    yield from opened
                return
        raise UserError(str(self.folder), f"has no file '{file}'", "Choose one that is listed")

    def _name(self, path: Path) -> str:
        return path.name if path == self.folder else str(path.relative_to(self.folder))


def text_of(data: bytes) -> str:
    """A file as text for people; what is none is said to be none."""
    if b"\0" in data[:4096]:
        return f"({len(data)} bytes, not text)"
    text = data[:_TEXT_LIMIT].decode(errors="replace")
    return text if len(data) <= _TEXT_LIMIT else f"{text}\n({len(data) - _TEXT_LIMIT} bytes more)"


def _task_line(path: Path) -> TaskLine:
    try:
        config = read_task(path).config
    except TaskInvalid as invalid:
        return TaskLine(name=path.name, title="", category="", difficulty="", problem="; ".join(invalid.problems))
    return TaskLine(
        name=path.name,
        title=(config.task.description if config.task else "") or "",
        category=str(config.metadata.get("category", "")),
        difficulty=str(config.metadata.get("difficulty", "")),
    )


def _trajectory_line(number: int, trajectory: Trajectory) -> TrajectoryLine:
    return TrajectoryLine(
        number=number,
        task=trajectory.task,
        source=trajectory.source,
        turns=len(trajectory.turns),
        failure=trajectory.failure,
        reward=trajectory.reward,
        mistakes=sum(turn.intent == "error" for turn in trajectory.turns),
    )


def _is_trajectories(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline()
    try:
        decode(first, source=path.name)
    except TrajectoryInvalid:
        return False
    return True


def _numbers(line: bytes) -> dict[str, float]:
    """The numbers of one line, nested ones by dotted names; empty for a line that was cut off."""
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return dict(_flat(document)) if isinstance(document, dict) else {}


def _flat(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 (NaN)
            yield f"{prefix}{key}", float(value)


def _curves(rows: list[dict[str, float]]) -> list[Curve]:
    if not rows:
        return []
    axis = "step" if all("step" in row for row in rows) else "at"
    start = rows[0].get("at", 0.0) if axis == "at" else 0.0
    names = sorted({name for row in rows for name in row} - {"at", "step"})
    stride = max(1, len(rows) // MOST_POINTS)
    return [
        Curve(
            name=name,
            unit="s" if axis == "at" else "steps",
            points=tuple(
                (row.get(axis, float(index)) - start, row[name])
                for index, row in enumerate(rows)
                if name in row and (index % stride == 0 or index == len(rows) - 1)
            ),
        )
        for name in names
    ]
