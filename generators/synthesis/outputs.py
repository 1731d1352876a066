"""The output directory: trajectories as they finish, and what is made of them at the end.

    trajectories.jsonl   one trajectory a line, in our own format; the truth for everything else here
    atif/NAME.json       the same in the Agent Trajectory Interchange Format
    sft.jsonl            chat messages with the loss weight of each answer
    dataset/             the same as Parquet in the Hugging Face layout, when asked for
    statistics.json

Invariants:
- A line is in the file before anything says that its trajectory is done. A process that is killed leaves whole lines
  and at most one torn one, which the next run cuts off; a trajectory that is there is not written again.
- At the end the lines are put in the order of their names, so that the order of finishing leaves no trace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from generators.synthesis.statistics import Statistics, statistics_of
from runtime.export import replacing, worth, write_atif, write_chat, write_dataset
from runtime.settings import ExportSettings
from runtime.trajectory import Trajectory, decode, encode

TRAJECTORIES = "trajectories.jsonl"
SFT = "sft.jsonl"
STATISTICS = "statistics.json"
DATASET = "dataset"
ATIF = "atif"


class _Name(msgspec.Struct):
    trajectory_id: str


class Shelf:
    """The trajectories of one run. Methods block for files: call them in a worker thread, one at a time."""

    def __init__(self, out: Path) -> None:
        """Open what an earlier process left, or an empty shelf. Raises: OSError."""
        self._out, self._path = out, out / TRAJECTORIES
        self._places: dict[str, tuple[int, int]] = {}
        """Offset and length of each line, by name."""
        self._size = 0
        if self._path.exists():
            self._read_places()

    def add(self, trajectory: Trajectory) -> None:
        """Keep a trajectory, unless it is there. Raises: OSError."""
        if trajectory.trajectory_id in self._places:
            return
        write_atif(trajectory, self._out / ATIF / f"{trajectory.trajectory_id}.json")
        line = encode(trajectory) + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._place(trajectory.trajectory_id, len(line))

    def trajectories(self) -> Iterator[Trajectory]:
        """All of them, by name. Raises: TrajectoryInvalid, OSError."""
        if not self._places:
            return
        with self._path.open("rb") as file:
            for name in sorted(self._places):
                yield decode(self._line(file.fileno(), name), source=f"{self._path}: {name}")

    def finish(self, export: ExportSettings) -> Statistics:
        """Put the lines in order and derive everything else. Raises: TrajectoryInvalid, OSError."""
        self._sort()
        write_chat(worth(self.trajectories(), tau=export.tau), self._out / SFT)
        if export.parquet:
            write_dataset(worth(self.trajectories(), tau=export.tau), self._out / DATASET)
        statistics = statistics_of(self.trajectories())
        with replacing(self._out / STATISTICS) as file:
            file.write(msgspec.json.format(msgspec.json.encode(statistics), indent=2) + b"\n")
        return statistics

    def _read_places(self) -> None:
        with self._path.open("rb+") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(self._size)
                    break
                self._place(msgspec.json.decode(line, type=_Name).trajectory_id, len(line))

    def _place(self, name: str, length: int) -> None:
        self._places[name] = (self._size, length)
        self._size += length

    def _line(self, descriptor: int, name: str) -> bytes:
        offset, length = self._places[name]
        return os.pread(descriptor, length, offset)

    def _sort(self) -> None:
        names, places = sorted(self._places), dict[str, tuple[int, int]]()
        size = 0
        with replacing(self._path) as file:
            if names:
                with self._path.open("rb") as old:
                    for name in names:
                        line = self._line(old.fileno(), name)
                        file.write(line)
                        places[name] = (size, len(line))
                        size += len(line)
        self._places = places
