"""A worker that is sent calls of another version."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from runtime.bus import MemoryBus
from runtime.daemon import worker as worker_module
from runtime.daemon.spread import Answer, declare, queue_of
from runtime.daemon.worker import Worker
from runtime.limits import Limits
from runtime.settings import Settings
from tests.runtime.daemon.loom_jobs import JOB

QUEUE = queue_of("shop", "plane")


async def work_off(bus: MemoryBus, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker do what there is, until nothing is left."""
    monkeypatch.setattr(worker_module, "job_kinds", lambda: {"shop": JOB})
    engine: Any = None
    worker = Worker(bus, Settings(), engine=engine, limits=Limits({}))
    for queue in (QUEUE, "results"):
        await declare(bus, queue)
    await bus.publish(QUEUE, msgspec.msgpack.encode(call), key="a")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await anyio.wait_all_tasks_blocked()
            worker.drain()
    assert worker.done == 0


async def test_who_sent_it_is_told_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    async with MemoryBus() as bus:
        await work_off(bus, {"call": "r/plane/000/ab", "answers": "results", "task": 1}, monkeypatch)
        async with bus.consume("results", slots=1) as answers:
            with anyio.fail_after(10):
                delivery = await anext(answers)
        answer = msgspec.msgpack.decode(delivery.body, type=Answer)
        assert (answer.call, answer.outcome) == ("r/plane/000/ab", "refused")
        assert "cannot read the call" in answer.detail
        assert "Run the same version of termloom on every machine" in answer.detail
        state = await bus.state(QUEUE)
        assert (state.ready, state.leased, state.dead) == (0, 0, 0)


async def test_a_call_that_does_not_even_say_who_waits_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch):
    async with MemoryBus() as bus:
        await work_off(bus, {"call": "r/plane/000/ab"}, monkeypatch)
        (letter,) = await bus.dead_letters(QUEUE)
        assert "cannot read the call" in letter.reason
        assert (await bus.state("results")).ready == 0
