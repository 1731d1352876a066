"""How a stage's work turns into messages: one piece of work, one message about its item.

A handler either carries the item on or rejects it with a short reason class. Infrastructure at fault is never a
rejection: those exceptions pass through to the runner, which delivers the message again.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from generators.images import HeldImages
from generators.roles import RoleFailed
from runtime.causes import first_cause
from runtime.stage import Message, Rejected
from sandbox.engine import Engine
from sandbox.errors import BuildUnsupported, TransferRefused

Taken = TypeVar("Taken", bound=Message)


class HoldsImages(Protocol):
    """What the stages of any pipeline share: an engine, and the images that their items stand on."""

    @property
    def engine(self) -> Engine: ...

    @property
    def images(self) -> HeldImages: ...


Context = TypeVar("Context", bound=HoldsImages)

Work = Callable[[Taken, Context], Awaitable[Message]]


class UnfitError(Exception):
    """The item cannot become a task. `reason` is counted in the yield table."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


def handles(stage: str) -> Callable[[Work[Taken, Context]], Callable[[Taken, Context], Awaitable[list[Message]]]]:
    """Make a stage's handler of its work: what ends the item becomes `Rejected`."""

    def decorate(work: Work[Taken, Context]) -> Callable[[Taken, Context], Awaitable[list[Message]]]:
        @functools.wraps(work)
        async def handler(message: Taken, context: Context) -> list[Message]:
            try:
                return [await _unwrapped(work, message, context)]
            except (UnfitError, RoleFailed) as end:
                reason, detail = end.reason, end.detail
            except BuildUnsupported as end:
                reason, detail = "build_unsupported", str(end)
            except TransferRefused as end:
                reason, detail = "transfer_refused", str(end)
            await context.images.release(context.engine, message.item)
            return [Rejected(item=message.item, run_id=message.run_id, stage=stage, reason=reason, detail=detail)]

        return handler

    return decorate


async def _unwrapped(work: Work[Taken, Context], message: Taken, context: Context) -> Message:
    """Do the work; of several exceptions in its task groups, raise the first cause."""
    try:
        return await work(message, context)
    except ExceptionGroup as group:
        raise first_cause(group) from group
