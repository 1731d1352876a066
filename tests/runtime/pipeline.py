"""A small pipeline for the runner's tests; run as a program, it is the process that gets killed.

Three stages; items whose number is divisible by 5 are rejected in the second; each item fails once by infrastructure.
The source admits `count` items and one more for each rejection, so what it admits depends on what came to its end.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from runtime.bus import MemoryBus
from runtime.events import RunEvent
from runtime.runner import Runner
from runtime.stage import Backoff, Message, Rejected, RetryLater, Stage
from runtime.store import Store

RUN = "test"
QUICK = Backoff(first_s=0.001, ceiling_s=0.002)


class Raw(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Cut(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Packed(Message, frozen=True, kw_only=True, tag=True):
    number: int


def raw(number: int) -> Raw:
    return Raw(item=f"{number:03d}", run_id=RUN, number=number)


class Refill:
    """Admits `count` items, then one more for each rejection."""

    def __init__(self, count: int) -> None:
        self.count, self.next, self.heard = count, count, []

    def start(self) -> Sequence[Message]:
        return [raw(n) for n in range(self.count)]

    def settled(self, message: Message) -> Sequence[Message]:
        self.heard.append(message.item)
        if not isinstance(message, Rejected):
            return []
        self.next += 1
        return [raw(self.next - 1)]


async def cut(message: Raw, _: object) -> list[Message]:
    return [Cut(item=message.item, run_id=RUN, number=message.number)]


def unreliable_pack():
    failed: set[str] = set()

    async def pack(message: Cut, _: object) -> list[Message]:
        if message.item not in failed:
            failed.add(message.item)
            raise RetryLater("the packer was away")
        if message.number % 5 == 0:
            return [Rejected(item=message.item, run_id=RUN, stage="pack", reason="round_number")]
        return [Packed(item=message.item, run_id=RUN, number=message.number)]

    return pack


def stages() -> list[Stage]:
    return [
        Stage(name="cut", subscribes="raw", takes=Raw, publishes={Cut: "cut"}, handler=cut, slots=2, backoff=QUICK),
        Stage(
            name="pack",
            subscribes="cut",
            takes=Cut,
            publishes={Packed: "packed"},
            handler=unreliable_pack(),
            slots=3,
            backoff=QUICK,
            attempts=10_000,  # a killed process may leave many failed attempts behind
        ),
    ]


async def main(path: Path, count: int, lines: int | None = None) -> None:
    """With `lines`, it stands still once it has told so many events."""
    told = 0

    def tell(event: RunEvent) -> None:
        nonlocal told
        print(event.kind, event.item, flush=True)
        told += 1
        if told == lines:
            signal.pause()

    async with Store(path) as store, MemoryBus() as bus:
        await store.open_run(RUN, command="test", settings="{}")
        runner = Runner(
            stages=stages(), bus=bus, store=store, context=None, run_id=RUN, source=Refill(count), on_event=tell
        )
        await runner.run()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), *map(int, sys.argv[2:]))
