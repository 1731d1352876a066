"""Sandboxes counted: what for, on which engine, in which state."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sandbox.owner import owner_is_alive, owner_is_dead, owner_token
from sandbox.spec import SandboxRecord


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Sandboxes that are alike."""

    purpose: str
    engine: str
    state: str
    """`of this daemon`, `of another process`, `elsewhere`; `left behind` and `past its lease` wait for the reaper."""
    count: int
    oldest_s: float


def census(records: Iterable[SandboxRecord], *, now: float) -> list[Row]:
    """The commonest first."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        key = (_purpose(record), record.engine, _state(record, now))
        groups.setdefault(key, []).append(now - record.created_at)
    rows = [
        Row(purpose=purpose, engine=engine, state=state, count=len(ages), oldest_s=max(ages))
        for (purpose, engine, state), ages in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.purpose, row.state))


def _purpose(record: SandboxRecord) -> str:
    """`solve 00007/3` is to solve; an episode is named by its item alone."""
    words = record.purpose.split()
    return words[0] if len(words) > 1 else "episode" if words else "other"


def _state(record: SandboxRecord, now: float) -> str:
    if record.expires_at <= now:
        return "past its lease"
    if record.owner == owner_token():
        return "of this daemon"
    if owner_is_alive(record.owner):
        return "of another process"
    return "left behind" if owner_is_dead(record.owner) else "elsewhere"
