"""An operator's hand on a running run: pause, cancel an item, requeue a dead letter; nothing is lost by any of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from runtime.bus import MemoryBus
from runtime.runner import Runner
from runtime.source import Once
from runtime.stage import Message, Rejected, RetryLater, Stage
from runtime.store import Store
from tests.runtime.pipeline import QUICK, RUN, Packed, Raw, raw


class Press:
    """One stage that works when it is told to; `broken` items fail however often they come."""

    def __init__(self, *, broken: Sequence[str] = ()) -> None:
        self.broken, self.release, self.begun = set(broken), anyio.Event(), anyio.Semaphore(0)
        self.seen: list[str] = []

    async def press(self, message: Raw, _: object) -> list[Message]:
        self.seen.append(message.item)
        self.begun.release()
        if message.item in self.broken:
            raise RetryLater("the press is broken")
        await self.release.wait()
        return [Packed(item=message.item, run_id=RUN, number=message.number)]

    def stage(self, slots: int) -> Stage:
        return Stage(
            name="press", subscribes="raw", takes=Raw, publishes={Packed: "packed"},
            handler=self.press, slots=slots, attempts=2, backoff=QUICK,
        )  # fmt: skip


@asynccontextmanager
async def running(path: Path, press: Press, count: int, slots: int = 1) -> AsyncIterator[tuple[Runner, Store, list]]:
    results = []
    with anyio.fail_after(20):
        async with Store(path) as store, MemoryBus() as bus, anyio.create_task_group() as group:
            await store.open_run(RUN, command="test", settings="{}")
            runner = Runner(
                stages=[press.stage(slots)], bus=bus, store=store, context=None, run_id=RUN,
                source=Once([raw(n) for n in range(count)]), on_event=lambda _: None,
            )  # fmt: skip

            async def run() -> None:
                results.append(await runner.run())

            group.start_soon(run)
            yield runner, store, results
            press.release.set()


async def ends(store: Store) -> dict[str, str]:
    return {entry.item: entry.queue for entry in await store.terminal(RUN)}


async def test_a_paused_run_takes_up_nothing_and_goes_on_where_it_stopped(tmp_path):
    press = Press()
    async with running(tmp_path / "s.db", press, count=3) as (runner, store, results):
        await press.begun.acquire()
        runner.pause()
        press.release.set()
        while (await store.tally(RUN)).terminal < 1:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert press.seen == ["000"]
        assert runner.paused
        runner.unpause()
    assert results[0].state == "finished"
    assert press.seen == ["000", "001", "002"]


async def test_a_paused_run_can_be_drained(tmp_path):
    press = Press()
    async with running(tmp_path / "s.db", press, count=2) as (runner, _, results):
        await press.begun.acquire()
        runner.pause()
        runner.drain()
        press.release.set()
    assert (results[0].state, results[0].pending) == ("drained", 1)


async def test_a_cancelled_item_ends_as_cancelled_in_work_and_in_the_queue(tmp_path):
    press = Press()
    async with running(tmp_path / "s.db", press, count=3) as (runner, store, results):
        await press.begun.acquire()
        assert runner.cancel("002")
        assert runner.cancel("000")
        assert not runner.cancel("nobody")
        await press.begun.acquire()
        press.release.set()
        while not results:
            await anyio.lowlevel.checkpoint()
        assert await ends(store) == {"000": "rejected", "001": "packed", "002": "rejected"}
        assert await store.dead_letters(RUN) == []
    assert press.seen == ["000", "001"]


async def test_a_dead_letter_comes_back_as_a_new_item_on_the_live_run(tmp_path):
    press = Press(broken=["000"])
    async with running(tmp_path / "s.db", press, count=2, slots=3) as (runner, store, results):
        while not (letters := await store.dead_letters(RUN)):
            await anyio.lowlevel.checkpoint()
        assert letters[0].reason == "gave_up: the press is broken"
        assert await runner.requeue("000") == "000-r1"
        assert await runner.requeue("000") is None
        press.release.set()
        while not results:
            await anyio.lowlevel.checkpoint()
        assert await ends(store) == {"000": "rejected", "000-r1": "packed", "001": "packed"}
    assert results[0].admitted == 3


async def test_a_dead_letter_that_two_ask_for_at_once_comes_back_once(tmp_path):
    press = Press(broken=["000"])
    async with running(tmp_path / "s.db", press, count=2, slots=3) as (runner, store, results):
        while not await store.dead_letters(RUN):
            await anyio.lowlevel.checkpoint()
        assert sorted(map(str, await anyio.amap(runner.requeue, ["000", "000"]))) == ["000-r1", "None"]
        press.release.set()
        while not results:
            await anyio.lowlevel.checkpoint()
        assert await ends(store) == {"000": "rejected", "000-r1": "packed", "001": "packed"}


async def test_what_comes_back_may_be_given_up_and_come_back_again(tmp_path):
    press = Press(broken=["000", "000-r1"])
    async with running(tmp_path / "s.db", press, count=2, slots=3) as (runner, store, _):
        for item in ("000", "000-r1"):
            while not any(letter.item == item for letter in await store.dead_letters(RUN)):
                await anyio.lowlevel.checkpoint()
            await runner.requeue(item)
        assert press.seen.count("000-r1") == 2
        press.release.set()
        while (await store.tally(RUN)).pending:
            await anyio.lowlevel.checkpoint()
        assert (await ends(store))["000-r2"] == "packed"


async def test_a_rejection_is_no_dead_letter(tmp_path):
    class Refusing(Press):
        async def press(self, message: Raw, _: object) -> list[Message]:
            return [Rejected(item=message.item, run_id=RUN, stage="press", reason="ugly")]

    async with running(tmp_path / "s.db", Refusing(), count=1) as (_, store, results):
        while not results:
            await anyio.lowlevel.checkpoint()
        assert await store.dead_letters(RUN) == []
