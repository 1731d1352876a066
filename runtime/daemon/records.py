"""Jobs as files: one JSON document each, so that a daemon that was killed knows what it had accepted.

Invariants:
- A job is on disk before its submitter hears of it; files appear atomically.
- No secret is in one: settings are recorded masked, and the daemon's own secrets take their place when the job runs.
- The run's progress is not in here: that is the store's, and a job that was under way is simply resumed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from runtime.errors import StoreError

SCHEMA_VERSION = 1
State = Literal["queued", "running", "finished", "drained", "failed", "cancelled"]
OVER: tuple[State, ...] = ("finished", "drained", "failed", "cancelled")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as recorded."""

    schema_version: int = SCHEMA_VERSION
    job: str
    """`j1`, `j2`, ...: short enough to be typed."""
    kind: str
    settings: dict[str, Any]
    """Only the sections that the submitter decides on."""
    options: dict[str, Any]
    run_id: str
    out: str
    state: State = "queued"
    begun: bool = False
    created_at: float
    """Seconds since the epoch, as the next two."""
    started_at: float = 0.0
    ended_at: float = 0.0
    detail: str = ""
    """Why it failed or drained."""
    result: dict[str, Any] = {}

    @property
    def number(self) -> int:
        return int(self.job[1:])


class JobRecords:
    """The directory of job files. All methods block briefly. Raises: StoreError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def all(self) -> list[Job]:
        """In the order of submission."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sorted((self._read(path) for path in self._directory.glob("j*.json")), key=lambda job: job.number)

    def write(self, job: Job) -> None:
        path = self._directory / f"{job.job}.json"
        fresh = path.with_suffix(".partial")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(job))
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except OSError as error:
            raise StoreError(str(path), error.strerror or str(error), "Free space on that disk") from error

    def _read(self, path: Path) -> Job:
        try:
            job = msgspec.json.decode(path.read_bytes(), type=Job)
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(str(path), f"is no job record: {error}", "Move the file away and start again") from error
        if job.schema_version > SCHEMA_VERSION:
            raise StoreError(str(path), f"its schema is version {job.schema_version}", "Use a newer termloom")
        return job
