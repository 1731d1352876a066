"""Removes sandboxes that nobody owns any more. The decision is pure; `reap` carries it out.

Invariants:
- Only what an engine's inventory lists is ever removed, and that lists only what we labelled.
- Dead is an owner whose process id, on this boot and in this process-id namespace, is free or belongs to a younger
  process. Of an owner elsewhere nothing is known: its sandboxes are left until they expire.
- A removal that fails is reported, and found again by the next reap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.spec import Record, SandboxRecord


class Reaped(Record, frozen=True):
    """What one reap did."""

    removed: tuple[SandboxRecord, ...] = ()
    failed: tuple[tuple[SandboxRecord, str], ...] = ()
    """Still there, with the reason."""


def owner_token() -> str:
    """This process as `<boot id>.<pid namespace>:<pid>:<start ticks>`, for the leases it takes."""
    pid = os.getpid()
    return f"{_here()}:{pid}:{_start_ticks(pid)}"


def owner_is_dead(token: str) -> bool:
    """Whether the process that a token names is known to be gone."""
    here, _, rest = token.partition(":")
    pid, _, ticks = rest.partition(":")
    return here == _here() and pid.isdigit() and str(_start_ticks(int(pid))) != ticks


def _here() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(fields[18])


def orphans(
    records: Iterable[SandboxRecord], *, now: float, is_dead: Callable[[str], bool], run_id: str | None, owner: str
) -> list[SandboxRecord]:
    """The records to remove: expired, or of a dead owner. With a run, of that run alone, and `owner`'s own as well."""
    return [
        record
        for record in records
        if run_id in (None, record.run_id)
        and (record.expires_at <= now or is_dead(record.owner) or (run_id is not None and record.owner == owner))
    ]


async def reap(engine: Engine, *, now: float, run_id: str | None = None) -> Reaped:
    """Remove what `orphans` names, one after the other. With `run_id`: at the end of that run, in its own process.

    Raises: EngineFault when the inventory cannot be read.
    """
    records = await engine.inventory()
    removed, failed = [], []
    for record in orphans(records, now=now, is_dead=owner_is_dead, run_id=run_id, owner=owner_token()):
        try:
            await engine.remove(record.sandbox_id)
            removed.append(record)
        except SandboxError as error:
            failed.append((record, str(error)))
    return Reaped(removed=tuple(removed), failed=tuple(failed))
