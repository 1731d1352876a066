"""Five stages with faults on the way, for runs that must lose nothing: a soak, a bench between machines, a drill.

Faults are drawn from a seed: infrastructure that asks for another try, bugs, handlers that hang until their deadline,
acknowledgements that the bus never hears, sandboxes that die under their command, a last stage that stops to think.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Self, get_args

import anyio

from runtime.bus.protocol import Bus, Delivery
from runtime.stage import Backoff, Handler, Message, Rejected, RetryLater, Stage
from sandbox.engine import Engine
from sandbox.spec import Limits, SandboxSpec

RUN = "soak"
WINDOW = 400
"""Items under way at once. More than a queue holds, so that the slow last stage is felt by the first."""
SANDBOX = Limits(memory_mb=128, pids=64, disk_mb=32, lifetime_s=120)

Fault = Literal["retry", "bug", "hang", "lost ack", "lost sandbox", "slow"]


@dataclass(frozen=True, kw_only=True)
class Chances:
    """Of each fault, at each attempt."""

    retry: float = 0.02
    bug: float = 0.005
    hang: float = 0.002
    lost_ack: float = 0.01
    lost_sandbox: float = 0.1
    """Of those that are in a sandbox."""
    slow: float = 0.002
    sandbox: float = 0.02
    """Items that run a command in a sandbox: no fault."""


class Sown(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Thought(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Ran(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Checked(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Shelved(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Kept(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Window:
    """Admits so many items at once, and one more for each that ends."""

    def __init__(self, items: int) -> None:
        self._items, self._next = items, min(WINDOW, items)

    def start(self) -> Sequence[Message]:
        return [sown(number) for number in range(self._next)]

    def settled(self, message: Message) -> Sequence[Message]:
        if self._next >= self._items:
            return ()
        self._next += 1
        return (sown(self._next - 1),)


def sown(number: int) -> Sown:
    return Sown(item=f"{number:06d}", run_id=RUN, number=number)


class Field:
    """What the stages are given: the faults, the pace, the sandboxes."""

    def __init__(self, *, seed: int, chances: Chances, pause_s: float, engine: Engine, image: str) -> None:
        self.chances, self.engine, self.image = chances, engine, image
        self.injected: Counter[Fault] = Counter()
        self.commands = 0
        self._pause_s, self._began = pause_s, time.monotonic()
        self._draws = {fault: random.Random(f"{seed}/{fault}") for fault in get_args(Fault)}
        """Each fault has its own: how many there are does not depend on who comes first."""

    def hits(self, fault: Fault, chance: float) -> bool:
        hit = self._draws[fault].random() < chance
        self.injected[fault] += hit
        return hit

    async def turn(self, number: int) -> None:
        """Until it is this item's turn: the run lasts as long as it was asked to."""
        await anyio.sleep(max(0.0, self._began + number * self._pause_s - time.monotonic()))

    async def stumble(self) -> None:
        """The faults that any handler may meet."""
        if self.hits("retry", self.chances.retry):
            raise RetryLater("the other side was away")
        if self.hits("bug", self.chances.bug):
            raise ZeroDivisionError("a planted bug")
        if self.hits("hang", self.chances.hang):
            await anyio.sleep_forever()

    def in_sandbox(self, number: int) -> bool:
        """The same items at every attempt."""
        return random.Random(number).random() < self.chances.sandbox

    async def command(self, item: str) -> None:
        spec = SandboxSpec(image=self.image, limits=SANDBOX, run_id=RUN, purpose=item)
        async with await self.engine.create(spec) as sandbox, anyio.create_task_group() as group:
            session = await sandbox.open_session()
            if self.hits("lost sandbox", self.chances.lost_sandbox):
                group.start_soon(self.engine.remove, sandbox.id)
            result = await session.run(f"echo {item} > here; cat here", timeout_s=60)
            assert result.output == f"{item}\n", result
            self.commands += 1
            await session.aclose()


async def think(message: Sown, field: Field) -> list[Message]:
    """As a model call: nothing but waiting."""
    await field.turn(message.number)
    await field.stumble()
    await anyio.sleep(0.05)
    return [Thought(item=message.item, run_id=RUN, number=message.number)]


async def run(message: Thought, field: Field) -> list[Message]:
    await field.stumble()
    if field.in_sandbox(message.number):
        await field.command(message.item)
    return [Ran(item=message.item, run_id=RUN, number=message.number)]


async def check(message: Ran, field: Field) -> list[Message]:
    """One item in fifty ends here."""
    await field.stumble()
    if message.number % 50 == 0:
        return [Rejected(item=message.item, run_id=RUN, stage="check", reason="round_number")]
    return [Checked(item=message.item, run_id=RUN, number=message.number)]


async def shelve(message: Checked, field: Field) -> list[Message]:
    await field.stumble()
    return [Shelved(item=message.item, run_id=RUN, number=message.number)]


async def keep_it(message: Shelved, field: Field) -> list[Message]:
    """A slow consumer, now and then: what comes before it fills up."""
    await field.stumble()
    if field.hits("slow", field.chances.slow):
        await anyio.sleep(1.0)
    return [Kept(item=message.item, run_id=RUN, number=message.number)]


def stages(*, deadline_s: float = 10.0) -> list[Stage]:
    """`deadline_s` is how long a handler that hangs holds its place."""

    def stage(name: str, takes: type[Message], gives: type[Message], handler: Handler, slots: int) -> Stage:
        return Stage(
            name=name,
            subscribes=takes.__name__.lower(),
            takes=takes,
            publishes={gives: gives.__name__.lower()},
            handler=handler,
            slots=slots,
            attempts=24,
            backoff=Backoff(first_s=0.05, ceiling_s=1.0),
            deadline_s=deadline_s,
        )

    return [
        stage("think", Sown, Thought, think, 16),
        stage("run", Thought, Ran, run, 16),
        stage("check", Ran, Checked, check, 16),
        stage("shelve", Checked, Shelved, shelve, 16),
        stage("keep", Shelved, Kept, keep_it, 4),
    ]


class Forgetful:
    """A bus that now and then does not hear an acknowledgement, and so delivers again what was done."""

    def __init__(self, bus: Bus, field: Field) -> None:
        self._bus, self._field = bus, field
        self.declare, self.publish, self.state = bus.declare, bus.publish, bus.state
        self.dead_letters, self.requeue = bus.dead_letters, bus.requeue

    @asynccontextmanager
    async def consume(self, queue: str, *, slots: int) -> AsyncIterator[AsyncIterator[Delivery]]:
        async with self._bus.consume(queue, slots=slots) as deliveries:
            yield self._each(deliveries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """The bus within belongs to whoever opened it."""

    async def _each(self, deliveries: AsyncIterator[Delivery]) -> AsyncIterator[Delivery]:
        async for delivery in deliveries:
            yield _Unheard(delivery) if self._field.hits("lost ack", self._field.chances.lost_ack) else delivery


class _Unheard:
    """A delivery whose acknowledgement is lost."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.nack, self.extend, self.reject = delivery.nack, delivery.extend, delivery.reject

    @property
    def key(self) -> str:
        return self._delivery.key

    @property
    def body(self) -> bytes:
        return self._delivery.body

    @property
    def attempt(self) -> int:
        return self._delivery.attempt

    async def ack(self) -> None:
        await self._delivery.nack()
