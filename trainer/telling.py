"""Tells of the episodes that the training loop plays, as a runner tells of its items."""

from __future__ import annotations

import time
from collections.abc import Awaitable

from runtime.events import Kind, OnEvent, RunEvent
from runtime.stage import Rejected
from runtime.trajectory import Trajectory
from trainer.rollout import STAGE, RolloutAsked


async def told(
    on_event: OnEvent, message: RolloutAsked, playing: Awaitable[Trajectory | Rejected]
) -> Trajectory | Rejected:
    """Await an episode of training and tell of it, as a runner tells of its items."""

    def tell(kind: Kind, *, queue: str = "", detail: str = "") -> None:
        event = RunEvent(
            kind=kind,
            run=message.run_id,
            at=time.time(),
            stage=STAGE.name,
            item=message.item,
            queue=queue,
            detail=detail,
        )
        on_event(event)

    tell(Kind.QUEUED)
    tell(Kind.STARTED)
    played = await playing
    tell(Kind.DONE)
    if isinstance(played, Rejected):
        tell(Kind.SETTLED, queue="rejected", detail=played.reason)
    else:
        tell(Kind.SETTLED, queue="rolled_out")
    return played
