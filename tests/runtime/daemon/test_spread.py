"""What a daemon sends out and takes back, over a bus in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from runtime.bus import Delivery, MemoryBus
from runtime.daemon.spread import Abroad, Answer, Call, declare, queue_of
from runtime.errors import WorkUnreadable
from runtime.logs import logging_to
from runtime.routes import Routes
from runtime.settings import Settings
from tests.runtime.daemon.loom_jobs import JOB, Board, Plank, Shop, place

QUEUE = queue_of("shop", "plane")
PLANK = Plank(item="000", run_id="r", number=1)
BOARD = Board(item="000", run_id="r", number=2)
SHOP = Shop(0.0, [], "")


async def abroad(bus: MemoryBus) -> Abroad:
    for queue in (QUEUE, "results"):
        await declare(bus, queue)
    return Abroad(bus, [QUEUE], answers="results")


async def sent(abroad: Abroad, took: list) -> None:
    stages = {stage.name: stage for stage in abroad.stages_for(JOB, place(Settings(), {"out": "/out"}), Settings())}
    took += await stages["plane"].handler(PLANK, SHOP)


async def answer(bus: MemoryBus, calls: AsyncIterator[Delivery]) -> Delivery:
    """Do the next call as a worker does, up to its acknowledgement."""
    delivery = await anext(calls)
    call = msgspec.msgpack.decode(delivery.body, type=Call)
    bodies = tuple(entry.body for entry in Routes(JOB.stages).outputs(JOB.stages[1], "000", [BOARD]))
    done = Answer(call=call.call, outcome="done", bodies=bodies)
    await bus.publish(call.answers, msgspec.msgpack.encode(done), key=call.call)
    return delivery


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
                delivery = await answer(bus, calls)
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
                    await (await answer(bus, calls)).ack()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        (letter,) = await bus.dead_letters("results")
        state = await bus.state("results")
    (line,) = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (took, letter.body, state.ready, state.leased) == ([BOARD], body, 0, 0)
    assert (line["event"], line["call"], line["detail"]) == ("an answer cannot be read", letter.key, letter.reason)
