"""Removes sandboxes that nobody owns any more. The decision is pure; `reap` carries it out.

Invariants:
- Only what an engine's inventory lists is ever removed, and that lists only what we labelled.
- Of an owner elsewhere (see `sandbox.owner`) nothing is known: its sandboxes are left until they expire.
- A removal that fails is reported, and found again by the next reap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.owner import owner_is_dead, owner_token
from sandbox.spec import Record, SandboxRecord


class Reaped(Record, frozen=True):
    """What one reap did."""

    removed: tuple[SandboxRecord, ...] = ()
    failed: tuple[tuple[SandboxRecord, str], ...] = ()
    """Still there, with the reason."""


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
