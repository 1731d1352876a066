"""What happens in a run, as data: progress screens, `--json` output, dashboard and journal all read these."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec


class Kind(enum.StrEnum):
    """What an event tells."""

    QUEUED = "queued"
    """The item waits in the stage's queue."""
    STARTED = "started"
    DONE = "done"
    """The stage's result is in the store."""
    RETRY = "retry"
    """Infrastructure was at fault: the item comes again."""
    FAULT = "fault"
    """A handler has a bug: the traceback is in the detail."""
    SETTLED = "settled"
    """The item is at its end; `detail` is the reason of a rejection, empty otherwise."""
    STALLED = "stalled"
    """The item has not moved for a while; the detail says what it waits for."""
    LAG = "lag"
    """The event loop answered late; the detail says by how much."""
    DRAINING = "draining"
    """Nothing new is taken up; what is in work finishes."""
    SAID = "said"
    """The detail is a line for people."""
    STEP = "step"
    """A training step: its metrics in `numbers`, a line for people in the detail."""


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. `at` is seconds since the epoch."""

    kind: Kind
    run: str
    at: float
    stage: str = ""
    queue: str = ""
    """Where a settled item ended."""
    item: str = ""
    detail: str = ""
    numbers: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """Of a step; left out elsewhere."""


OnEvent = Callable[[RunEvent], None]
"""A listener. It returns at once and never raises."""


def fan_out(*listeners: OnEvent) -> OnEvent:
    """One listener that tells all."""

    def tell(event: RunEvent) -> None:
        for listener in listeners:
            listener(event)

    return tell
