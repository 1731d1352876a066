"""One queue and workers in network namespaces of their own: what a second machine adds.

Each worker is a process that takes messages from a NATS queue, waits as a stage does for a model, answers on a second
queue and acknowledges. The ceiling of one worker is its slots over the wait. One worker, then two, in the same run.

    python -m bench.workers URL SLOTS WAIT_S       is one worker
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from bench.nats_server import nats_server
from bench.netns import Elsewhere, elsewhere
from bench.record import keep
from runtime.bus.nats import NatsBus
from runtime.bus.protocol import Delivery, QueueOptions

PREFIX = "bench-workers"
WORK, DONE = "work", "done"
OPTIONS = QueueOptions(capacity=512, lease_s=60.0)


async def work(url: str, slots: int, wait_s: float) -> None:
    """One worker, until it is ended."""
    async with NatsBus(url, prefix=PREFIX) as bus:
        for queue in (WORK, DONE):
            await bus.declare(queue, OPTIONS)

        async def handle(delivery: Delivery) -> None:
            await anyio.sleep(wait_s)
            await bus.publish(DONE, b"", key=delivery.key)
            await delivery.ack()

        async with bus.consume(WORK, slots=slots) as deliveries, anyio.create_task_group() as group:
            print("ready", flush=True)
            async for delivery in deliveries:
                group.start_soon(handle, delivery)


@asynccontextmanager
async def _workers(places: Sequence[Elsewhere], url: str, slots: int, wait_s: float) -> AsyncIterator[None]:
    processes: list[Process] = []
    try:
        for place in places:
            command = [*place.prefix, sys.executable, "-m", "bench.workers", url, str(slots), str(wait_s)]
            process = await anyio.open_process(command, stderr=None, cwd=Path(__file__).parents[1])
            processes.append(process)
            assert process.stdout is not None
            assert await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 100) == b"ready"
        yield
    finally:
        for process in processes:
            process.kill()
            await process.aclose()


async def _rate(bus: NatsBus, round_name: str, messages: int) -> float:
    """Answers a second."""

    async def feed() -> None:
        for number in range(messages):
            await bus.publish(WORK, b"", key=f"{round_name}/{number}")

    seen: set[str] = set()
    started = time.perf_counter()
    async with anyio.create_task_group() as group, bus.consume(DONE, slots=32) as answers:
        group.start_soon(feed)
        async for answer in answers:
            await answer.ack()
            seen.add(answer.key)
            if len(seen) == messages:
                break
    return messages / (time.perf_counter() - started)


async def measure(*, workers: int, messages: int, slots: int, wait_s: float) -> None:
    """One row for each number of workers."""
    rows: list[dict[str, Any]] = []
    with elsewhere(workers) as places, nats_server(address=places[0].gateway) as url:
        async with NatsBus(url, prefix=PREFIX) as bus:
            for queue in (WORK, DONE):
                await bus.declare(queue, OPTIONS)
            for count in range(1, workers + 1):
                async with _workers(places[:count], url, slots, wait_s):
                    rate = await _rate(bus, f"{count}", messages * count)
                ceiling = count * slots / wait_s
                first = rows[0]["per s"] if rows else rate
                rows.append({"workers": count, "per s": rate, "ceiling/s": ceiling, "of it": rate / ceiling,
                             "times one": rate / first})  # fmt: skip
    keep("workers", rows, slots=slots, wait_s=wait_s)


if __name__ == "__main__":
    anyio.run(partial(work, sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
