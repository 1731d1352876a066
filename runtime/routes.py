"""From declared stages: which message goes to which queue, which queues are ends, and the encoding between.

Invariants:
- A queue has one stage; a queue without a stage is an end, and so is every message in it.
- A message type that a stage did not declare does not leave it.
- The bytes are MessagePack of the tagged message: every type is known from the declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from runtime.stage import Message, Rejected, Stage
from runtime.store import Entry

REJECTED = "rejected"
"""Where rejected items end, unless the stage declares another queue for them."""


class UndeclaredMessage(Exception):
    """A stage returned, or a source admitted, something that nobody declared: a bug of theirs."""

    def __init__(self, origin: str, message: object) -> None:
        super().__init__(f"{origin} gave a {type(message).__name__}, which no declaration allows")


class LostItem(Exception):
    """A handler did not say what became of its item: exactly one message must carry it on."""

    def __init__(self, stage: str, item: str, count: int) -> None:
        super().__init__(f"stage '{stage}' returned {count} messages for item '{item}', not one")


class UnencodableMessage(Exception):
    """A message holds what its bytes cannot, such as half a surrogate pair: the fault of whoever made it."""

    def __init__(self, message: object, reason: Exception) -> None:
        super().__init__(f"a {type(message).__name__} cannot be written: {reason}")


class Routes:
    """The pipeline as data."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.by_queue = {stage.subscribes: stage for stage in stages}
        if len(self.by_queue) < len(stages) or len({stage.name for stage in stages}) < len(stages):
            raise ValueError("two stages have the same name or the same queue")
        self._entrance = {stage.takes: stage for stage in stages}
        types = {Rejected} | {s.takes for s in stages} | {t for s in stages for t in s.publishes}
        union: Any = reduce(or_, types)  # tags tell the types apart
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, body: bytes) -> Message:
        return self._decoder.decode(body)

    def admit(self, message: Message) -> Entry:
        """The entry for a message of the source: it goes to the stage that takes its type."""
        stage = self._entrance.get(type(message))
        if stage is None:
            raise UndeclaredMessage("the source", message)
        return self._entry(stage.subscribes, message)

    def outputs(self, stage: Stage, item: str, messages: Sequence[Message]) -> list[Entry]:
        """The entries for what `stage` returned about `item`.

        Raises: UndeclaredMessage, LostItem, UnencodableMessage.
        """
        own = sum(message.item == item for message in messages)
        if own != 1:
            raise LostItem(stage.name, item, own)
        return [self._entry(self._destination(stage, message), message) for message in messages]

    def depth(self, queue: str) -> int:
        """Position of a queue's stage in the order of declaration; the end comes last."""
        return next((i for i, stage in enumerate(self.stages) if stage.subscribes == queue), len(self.stages))

    def _destination(self, stage: Stage, message: Message) -> str:
        queue = stage.publishes.get(type(message), REJECTED if isinstance(message, Rejected) else None)
        if queue is None:
            raise UndeclaredMessage(f"stage '{stage.name}'", message)
        return queue

    def _entry(self, queue: str, message: Message) -> Entry:
        try:
            body = self._encoder.encode(message)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise UnencodableMessage(message, error) from error
        return Entry(queue=queue, item=message.item, body=body, terminal=queue not in self.by_queue)
