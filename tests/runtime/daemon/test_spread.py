"""What a daemon sends out and takes back, over a bus in memory."""

from __future__ import annotations

import anyio
import msgspec

from runtime.bus import MemoryBus
from runtime.daemon.spread import Abroad, Answer, Call, declare, queue_of
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
                delivery = await anext(calls)
                call = msgspec.msgpack.decode(delivery.body, type=Call)
                bodies = tuple(entry.body for entry in Routes(JOB.stages).outputs(JOB.stages[1], "000", [BOARD]))
                answer = Answer(call=call.call, outcome="done", bodies=bodies)
                await bus.publish(call.answers, msgspec.msgpack.encode(answer), key=call.call)
                await anyio.wait_all_tasks_blocked()
                await delivery.nack()
                assert (await bus.state(QUEUE)).ready == 1
                group.cancel_scope.cancel()
    assert took == [BOARD]
