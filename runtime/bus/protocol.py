"""The bus: named work queues with leases.

Contract (one suite, `tests/runtime/bus/contract.py`, run by every implementation):
- `publish` waits while the queue is full: back-pressure reaches the source. A key that is queued, leased or dead,
  or was settled lately, is not queued a second time.
- Each message goes to one consumer at a time, under a lease; `extend` renews it. A lease that runs out, a `nack`, and a
  consumer that leaves by cancellation all mean: delivered again, `attempt` one higher.
- After `max_attempts` deliveries, or `reject`, the message becomes a dead letter with its reason. Dead letters are kept
  until requeued or purged.
- A message that is withdrawn is not delivered any more. Who has it under lease is not told, and may settle it: its slot
  is free again then. Its key counts as settled.
- At least once: a consumer must be idempotent by `key`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

import msgspec


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one queue behaves. Declared once, by the stage that subscribes."""

    capacity: int = 1024
    lease_s: float = 60.0
    max_attempts: int = 5


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard and the progress screen show."""

    queue: str
    ready: int
    leased: int
    delayed: int
    dead: int
    oldest_s: float
    """Age of the oldest message that is not settled, 0 when there is none."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    key: str
    body: bytes
    reason: str
    attempts: int


class Delivery(Protocol):
    """One message under lease. Exactly one of ack, nack, reject settles it; later calls do nothing."""

    @property
    def key(self) -> str: ...

    @property
    def body(self) -> bytes: ...

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        ...

    async def ack(self) -> None: ...

    async def nack(self, delay_s: float = 0.0) -> None: ...

    async def extend(self) -> None: ...

    async def reject(self, reason: str) -> None: ...


class Bus(Protocol):
    """Use as an async context manager. Queues are declared before use."""

    async def declare(self, queue: str, options: QueueOptions) -> None: ...

    async def publish(self, queue: str, body: bytes, *, key: str) -> None:
        """Raises: BusClosed; KeyError for a queue that nobody declared."""
        ...

    def consume(self, queue: str, *, slots: int) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Deliveries one after another, at most `slots` unsettled at once."""
        ...

    async def withdraw(self, queue: str, *, key: str) -> None:
        """Take a message back that is queued, delayed or under lease; else nothing happens.

        A server that does not answer keeps it. Raises: BusClosed.
        """
        ...

    async def untaken(self, queue: str, *, key: str) -> bool:
        """Whether a message is queued that no consumer was ever handed. False as well when a server does not answer.

        Raises: BusClosed.
        """
        ...

    async def state(self, queue: str) -> QueueState:
        """Raises: BusSilent when a server does not answer; BusClosed."""
        ...

    async def dead_letters(self, queue: str) -> list[DeadLetter]: ...

    async def requeue(self, queue: str, key: str) -> bool:
        """Put a dead letter back with a fresh count of attempts. False when there is none of that key."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...
