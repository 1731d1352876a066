"""What a daemon sends out and takes back, over a bus in memory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from runtime.bus import Delivery, MemoryBus, QueueOptions
from runtime.daemon.spread import Abroad, Answer, Call, declare, queue_of
from runtime.errors import WorkTakenBack, WorkUnreadable
from runtime.events import Kind, RunEvent, fan_out
from runtime.logs import logging_to
from runtime.progress import Tally
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.settings import Settings
from runtime.source import Once
from runtime.stage import Stage
from runtime.store import Store
from tests.runtime.daemon.loom_jobs import JOB, STAGES, Board, Log, Plank, Shop, place

QUEUE = queue_of("shop", "plane")
PLANK = Plank(item="000", run_id="r", number=1)
BOARD = Board(item="000", run_id="r", number=2)
SHOP = Shop(0.0, [], "")
PLACE = place(Settings(), {"out": "/out"})
DRAINING = RunEvent(kind=Kind.DRAINING, run=PLACE.run_id, at=time.time())


async def abroad(bus: MemoryBus) -> Abroad:
    for queue in (QUEUE, "results"):
        await declare(bus, queue)
    return Abroad(bus, [QUEUE], answers="results")


def plane(abroad: Abroad) -> Stage:
    return {stage.name: stage for stage in abroad.stages_for(JOB, PLACE, Settings())}["plane"]


async def sent(abroad: Abroad, took: list) -> None:
    took += await plane(abroad).handler(PLANK, SHOP)


async def answer(bus: MemoryBus, delivery: Delivery) -> Delivery:
    """Do a call as a worker does, up to its acknowledgement."""
    call = msgspec.msgpack.decode(delivery.body, type=Call)
    plank = Routes(STAGES).decode(call.body)
    board = Board(item=plank.item, run_id=plank.run_id, number=2 * plank.number)
    bodies = tuple(entry.body for entry in Routes(STAGES).outputs(STAGES[1], plank.item, [board]))
    done = Answer(call=call.call, outcome="done", bodies=bodies)
    await bus.publish(call.answers, msgspec.msgpack.encode(done), key=call.call)
    return delivery


async def waiting(bus: MemoryBus, count: int) -> None:
    """Until so many calls wait for a worker."""
    while (await bus.state(QUEUE)).ready != count:
        await checkpoint()


async def test_a_call_that_nobody_waits_for_any_more_is_no_work_for_anybody():
    async with MemoryBus() as bus:
        away = await abroad(bus)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(sent, away, [])
                await anyio.wait_all_tasks_blocked()
                assert (await bus.state(QUEUE)).ready == 1
                group.cancel_scope.cancel()
        assert (await bus.state(QUEUE)).ready == 0


async def test_a_call_that_was_answered_is_left_to_its_worker():
    took = []
    async with MemoryBus() as bus:
        away = await abroad(bus)
        with anyio.fail_after(10):
            async with bus.consume(QUEUE, slots=1) as calls, anyio.create_task_group() as group:
                group.start_soon(away.receive)
                group.start_soon(sent, away, took)
                delivery = await answer(bus, await anext(calls))
                await anyio.wait_all_tasks_blocked()
                await delivery.nack()
                assert (await bus.state(QUEUE)).ready == 1
                group.cancel_scope.cancel()
    assert took == [BOARD]


@pytest.mark.parametrize("body", [msgspec.msgpack.encode({"call": "r/plane/000/ab", "outcome": "postponed"}), b"\xc1"])
async def test_an_answer_that_cannot_be_read_ends_its_attempt_and_nothing_else(tmp_path: Path, body: bytes):
    took = []
    async with MemoryBus() as bus:
        away = await abroad(bus)
        with anyio.fail_after(10), logging_to(tmp_path / "log.jsonl"):
            async with bus.consume(QUEUE, slots=1) as calls, anyio.create_task_group() as group:
                group.start_soon(away.receive)

                async def answer_of_another_version() -> None:
                    delivery = await anext(calls)
                    await bus.publish("results", body, key=delivery.key)
                    await delivery.ack()

                group.start_soon(answer_of_another_version)
                with pytest.raises(WorkUnreadable, match="Run the same version of termloom on every machine"):
                    await sent(away, took)
                async with anyio.create_task_group() as again:
                    again.start_soon(sent, away, took)
                    await (await answer(bus, await anext(calls))).ack()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        (letter,) = await bus.dead_letters("results")
        state = await bus.state("results")
    (line,) = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (took, letter.body, state.ready, state.leased) == ([BOARD], body, 0, 0)
    assert (line["event"], line["call"], line["detail"]) == ("an answer cannot be read", letter.key, letter.reason)


async def test_a_call_that_waits_for_room_when_its_run_drains_is_taken_back():
    async with MemoryBus() as bus:
        await bus.declare(QUEUE, QueueOptions(capacity=1))
        away = await abroad(bus)
        handler = plane(away).handler
        ends = []

        async def ask() -> None:
            try:
                await handler(PLANK, SHOP)
            except WorkTakenBack:
                ends.append("taken back")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert (await bus.state(QUEUE)).ready == 1
                away.listen(DRAINING)
                group.start_soon(ask)  # its turn came before the drain
        assert ends == ["taken back"] * 3
        assert (await bus.state(QUEUE)).ready == 0


async def test_a_run_that_is_taken_up_again_sends_again():
    took = []
    async with MemoryBus() as bus:
        away = await abroad(bus)
        plane(away)
        away.listen(DRAINING)
        with anyio.fail_after(10):
            async with bus.consume(QUEUE, slots=1) as calls, anyio.create_task_group() as group:
                group.start_soon(away.receive)
                async with anyio.create_task_group() as again:
                    again.start_soon(sent, away, took)
                    await (await answer(bus, await anext(calls))).ack()
                group.cancel_scope.cancel()
    assert took == [BOARD]


async def test_a_run_that_drains_waits_for_the_calls_that_are_taken_and_keeps_the_others(tmp_path: Path):
    """Nobody ever takes the others: the run would not end."""
    run_id, tally, results = PLACE.run_id, Tally(["saw", "plane"]), []
    logs = [Log(item=f"{n:03d}", run_id=run_id, number=n) for n in range(5)]
    async with MemoryBus() as bus, MemoryBus() as own, Store(tmp_path / "s.db") as store:
        away = await abroad(bus)
        await store.open_run(run_id, command="shop", settings="{}")
        runner = Runner(
            stages=away.stages_for(JOB, PLACE, Settings()), bus=own, store=store, context=SHOP, run_id=run_id,
            source=Once(logs), on_event=fan_out(away.listen, tally),
        )  # fmt: skip

        async def run() -> None:
            results.append(await runner.run())

        with anyio.fail_after(20):
            async with bus.consume(QUEUE, slots=1) as calls, anyio.create_task_group() as group:
                group.start_soon(away.receive)
                async with anyio.create_task_group() as work:
                    work.start_soon(run)
                    taken = await anext(calls)
                    await waiting(bus, 4)
                    runner.drain()
                    await waiting(bus, 0)
                    await (await answer(bus, taken)).ack()
                group.cancel_scope.cancel()
        left = await store.pending(run_id)
    assert [(result.state, result.terminal, result.pending) for result in results] == [("drained", 1, 4)]
    assert [(entry.queue, entry.attempts) for entry in left] == [("plank", 0)] * 4
    stage = tally.stages["plane"]
    assert (len(stage.ready), len(stage.working), stage.passed) == (4, 0, 1)
