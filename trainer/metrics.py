"""Metrics of a run, one line a step: `metrics.jsonl`, and TensorBoard files where that extra is installed.

Invariants:
- A line is on disk before the next step begins.
- A step has one line: what a resumed run will do again is cut off first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class MetricsLog:
    """Writes a run's metrics."""

    def __init__(self, directory: Path) -> None:
        self._path, self._board_path = directory / "metrics.jsonl", directory / "tensorboard"
        self._board: Any = None

    def add(self, line: Mapping[str, Any]) -> None:
        """Append one step's metrics; `step` is among them."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._draw(line)

    def amend(self, line: Mapping[str, Any]) -> None:
        """Put more numbers into the line of a step that has one; `step` is among them."""
        lines = read_metrics(self._path)
        self._rewrite([old | dict(line) if old["step"] == line["step"] else old for old in lines])
        self._draw(line)

    def open(self, step: int) -> dict[str, Any]:
        """Begin after `step`: later lines belong to a run that did not come to a checkpoint. Returns the last line that
        stays.
        """
        kept = [line for line in read_metrics(self._path) if line["step"] <= step]
        if self._path.exists():
            self._rewrite(kept)
        self._board = _board(self._board_path, step)
        return kept[-1] if kept else {}

    def _rewrite(self, lines: Sequence[Mapping[str, Any]]) -> None:
        fresh = self._path.with_suffix(".partial")
        fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        fresh.rename(self._path)

    def _draw(self, line: Mapping[str, Any]) -> None:
        if self._board is not None:
            for name, value in line.items():
                self._board.add_scalar(name, value, global_step=line["step"])
            self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run, in order; a last line that was cut off by a kill is left out."""
    lines: list[dict[str, Any]] = []
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


def _board(directory: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=step + 1)
