"""Both buses against what they stand on, in one run: a bare memory object stream; bare nats-py on the same server.

Two measurements for each number of producers and as many consumers. Saturated: producers publish without pause, and
the rate counts acknowledged messages. Round trip: each producer has one message under way, from before it is published
until it is acknowledged. The bare JetStream does what the bus promises: the same stream settings, a deduplication id,
one message a pull, and an acknowledgement that the server confirms.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import anyio

from bench.nats_server import nats_server
from bench.record import keep, quantiles
from runtime.bus.memory import MemoryBus
from runtime.bus.nats import NatsBus
from runtime.bus.protocol import Bus, QueueOptions

CAPACITY = 1024
LEASE_S = 60.0
PADDING = b"x" * 500
"""A message is about as long as one of a pipeline."""
ROUNDS = 3
"""Ours and the floor take turns; the best round counts, as the least disturbed by whatever else the machine does."""

OnAcked = Callable[[bytes], None]
Lanes = Callable[[int], "AbstractAsyncContextManager[tuple[Lane, Lane]]"]
"""Opens ours and the floor. A stream at the server has room for so many: the bare client cannot wait for room."""


class Lane(Protocol):
    """One way for messages."""

    async def publish(self, body: bytes, key: str) -> None: ...

    async def work(self, on_acked: OnAcked) -> None:
        """Acknowledge one message after another until cancelled."""
        ...


class BusLane:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, body: bytes, key: str) -> None:
        await self._bus.publish("bench", body, key=key)

    async def work(self, on_acked: OnAcked) -> None:
        async with self._bus.consume("bench", slots=1) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                on_acked(delivery.body)


class StreamLane:
    """The floor in memory."""

    def __init__(self, capacity: int) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[bytes](capacity)

    async def publish(self, body: bytes, key: str) -> None:
        await self._send.send(body)

    async def work(self, on_acked: OnAcked) -> None:
        with self._receive.clone() as stream:
            async for body in stream:
                on_acked(body)

    def close(self) -> None:
        self._send.close()
        self._receive.close()


class JetStreamLane:
    """The floor between machines."""

    def __init__(self, jetstream: Any, name: str) -> None:
        self._jetstream, self._name = jetstream, name

    async def publish(self, body: bytes, key: str) -> None:
        await self._jetstream.publish(f"{self._name}.bench", body, headers={"Nats-Msg-Id": key})

    async def work(self, on_acked: OnAcked) -> None:
        from nats.errors import TimeoutError as NatsTimeout

        pull = await self._jetstream.pull_subscribe_bind("workers", self._name)
        while True:
            try:
                (message,) = await pull.fetch(1, timeout=20)
            except NatsTimeout:
                continue
            await message.ack_sync()
            on_acked(message.data)


@asynccontextmanager
async def _memory_lanes(_: int) -> AsyncIterator[tuple[Lane, Lane]]:
    stream = StreamLane(CAPACITY)
    async with MemoryBus() as bus:
        await bus.declare("bench", QueueOptions(capacity=CAPACITY, lease_s=LEASE_S))
        yield BusLane(bus), stream
    stream.close()


@asynccontextmanager
async def _nats_lanes(url: str, capacity: int) -> AsyncIterator[tuple[Lane, Lane]]:
    import nats
    from nats.js import api

    name = f"b{uuid.uuid4().hex[:8]}"
    client = await nats.connect(url)
    jetstream = client.jetstream(timeout=20)
    await jetstream.add_stream(
        api.StreamConfig(
            name=name,
            subjects=[f"{name}.*"],
            retention=api.RetentionPolicy.WORK_QUEUE,
            discard=api.DiscardPolicy.NEW,
            max_msgs=capacity,
            duplicate_window=24 * 3600.0,
        )
    )
    await jetstream.add_consumer(
        name,
        api.ConsumerConfig(
            durable_name="workers",
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=LEASE_S,
            max_deliver=-1,
            max_ack_pending=-1,
        ),
    )
    async with NatsBus(url, prefix=f"{name}o") as bus:
        await bus.declare("bench", QueueOptions(capacity=capacity, lease_s=LEASE_S))
        yield BusLane(bus), JetStreamLane(jetstream, name)
    await client.close()


async def _saturated(lane: Lane, pairs: int, messages: int) -> tuple[float, float]:
    """Acknowledged messages a second, and microseconds of this process's CPU for each."""
    left, done, run = messages, anyio.Event(), uuid.uuid4().hex

    def count(_: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def produce(producer: int) -> None:
        for number in range(producer, messages, pairs):
            await lane.publish(PADDING, f"{run}/{number}")

    async with anyio.create_task_group() as group:
        for _ in range(pairs):
            group.start_soon(lane.work, count)
        started, cpu = time.perf_counter(), time.process_time()
        for producer in range(pairs):
            group.start_soon(produce, producer)
        await done.wait()
        spent, cpu = time.perf_counter() - started, time.process_time() - cpu
        group.cancel_scope.cancel()
    return messages / spent, cpu / messages * 1e6


async def _round_trips(lane: Lane, pairs: int, messages: int) -> list[float]:
    """Milliseconds from publishing to acknowledgement, with one message of each producer under way."""
    run, times, left = uuid.uuid4().hex, list[float](), pairs
    acked: dict[bytes, anyio.Event] = {}

    async def produce(producer: int) -> None:
        nonlocal left
        for number in range(producer, messages, pairs):
            body = b"%d %s" % (number, PADDING)
            event = acked[body] = anyio.Event()
            started = time.perf_counter()
            await lane.publish(body, f"{run}/{number}")
            await event.wait()
            times.append((time.perf_counter() - started) * 1000)
            del acked[body]
        left -= 1
        if not left:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(pairs):
            group.start_soon(lane.work, lambda body: acked[body].set())
        for producer in range(pairs):
            group.start_soon(produce, producer)
    return times


async def _compare(name: str, lanes: Lanes, pairs: int, messages: int) -> dict[str, Any]:
    """Each measurement on lanes of its own: a cancelled pull of the bare client may take a message along."""
    rates: list[list[float]] = [[], []]
    costs: list[list[float]] = [[], []]
    trips: list[list[tuple[float, float, float]]] = [[], []]
    for _ in range(ROUNDS):
        for lane in (0, 1):
            async with lanes(messages) as opened:
                rate, cost = await _saturated(opened[lane], pairs, messages)
                rates[lane].append(rate)
                costs[lane].append(cost)
            async with lanes(messages) as opened:
                trips[lane].append(quantiles(await _round_trips(opened[lane], pairs, messages)))
    (rate, floor_rate), (cost, floor_cost) = map(max, rates), map(min, costs)
    trip, floor_trip = map(min, trips)
    return {
        "bus": name,
        "producers": pairs,
        "per s": rate,
        "floor/s": floor_rate,
        "ratio": floor_rate / rate,
        "cpu us": cost,
        "floor us": floor_cost,
        "cpu ratio": cost / floor_cost,
        "p50 ms": trip[0],
        "p95 ms": trip[1],
        "p99 ms": trip[2],
        "floor p50": floor_trip[0],
        "floor p95": floor_trip[1],
        "floor p99": floor_trip[2],
        "p50 ratio": trip[0] / floor_trip[0],
    }


async def measure(*, messages: int, nats_messages: int, pairs: Sequence[int], url: str) -> list[dict[str, Any]]:
    """One row for each bus and number of producers."""
    with nats_server(url) as server:
        rows = [await _compare("memory", _memory_lanes, count, messages) for count in pairs]
        rows += [await _compare("nats", partial(_nats_lanes, server), count, nats_messages) for count in pairs]
    keep("bus", rows, messages={"memory": messages, "nats": nats_messages})
    return rows
