"""The bus in memory: the default, nothing to run, and the double for tests.

Two layers. `QueueCore` decides: a plain state machine that takes the time as an argument and never waits. `MemoryBus`
is the thin shell that waits for what the core decided: one signal a queue, and the core's next deadline.

Invariants:
- A key is in exactly one place: ready, leased, delayed, dead or settled; of the settled ones the latest are remembered.
- ready + leased + delayed never exceeds the capacity by publishing; only a requeued dead letter may go above it.
- A lease ends once: by ack, nack, reject, expiry, or its consumer's leaving. A later call on it changes nothing.
- A message that is withdrawn under lease is settled when the lease ends, unless that rejects it.
- The oldest ready message is delivered first, so a redelivered one does not queue behind newer work.
- What it holds in memory grows with what is queued and dead, not with what has passed through.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Self

import anyio.lowlevel

from runtime.bus.protocol import DeadLetter, QueueOptions, QueueState
from runtime.bus.signal import Signal
from runtime.errors import BusClosed

REMEMBERED = 4096
"""Settled keys known to a queue. A key comes again moments after the first time, or not at all."""


@dataclass(slots=True)
class _Entry:
    sequence: int
    key: str
    body: bytes
    since: float
    place: Literal["ready", "leased", "delayed"] = "ready"
    attempts: int = 0
    due: float = 0.0
    """When the lease or the delay ends; meaningless while there is none."""
    token: int = 0
    owner: int = 0
    withdrawn: bool = False
    """Under lease: not to be delivered again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One delivery as the core hands it out. `token` names this lease and no other."""

    key: str
    body: bytes
    attempt: int
    token: int


class QueueCore:
    """One queue. Every method returns at once; `now` is any clock that never goes back."""

    def __init__(self, queue: str, options: QueueOptions) -> None:
        self.queue, self.options = queue, options
        self._entries: dict[str, _Entry] = {}
        self._ready: list[tuple[int, str]] = []
        self._leases: OrderedDict[str, _Entry] = OrderedDict()
        """They run out in this order, since all are equally long."""
        self._delays: list[tuple[float, str]] = []
        self._dead: dict[str, DeadLetter] = {}
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._held: Counter[int] = Counter()
        self._sequence = itertools.count(1)
        self._token = itertools.count(1)

    def publish(self, key: str, body: bytes, now: float) -> bool:
        """Queue a message, or find that its key is known. False: the queue is full, nothing changed."""
        if key in self._entries or key in self._dead or key in self._settled:
            return True
        if len(self._entries) >= self.options.capacity:
            return False
        self._add(key, body, now)
        return True

    def lease(self, owner: int, now: float) -> Lease | None:
        """The oldest ready message under a fresh lease, if there is one."""
        if not self._ready:
            return None
        _, key = heapq.heappop(self._ready)
        entry = self._entries[key]
        entry.attempts += 1
        entry.place, entry.token, entry.owner = "leased", next(self._token), owner
        entry.due = now + self.options.lease_s
        self._held[owner] += 1
        self._leases[key] = entry
        return Lease(key, entry.body, entry.attempts, entry.token)

    def held(self, owner: int) -> int:
        """How many leases `owner` has that have not ended."""
        return self._held[owner]

    def ack(self, lease: Lease) -> bool:
        """Settle. False: this lease had ended before."""
        if (entry := self._leased(lease)) is None:
            return False
        self._end(entry)
        self._settle(entry)
        return True

    def nack(self, lease: Lease, delay_s: float, now: float) -> bool:
        """Give back, for redelivery after `delay_s`."""
        if (entry := self._leased(lease)) is None:
            return False
        self._end(entry)
        self._again(entry, "given back", now, delay_s)
        return True

    def extend(self, lease: Lease, now: float) -> bool:
        """Let the lease run for its full length from now on."""
        if (entry := self._leased(lease)) is None:
            return False
        entry.due = now + self.options.lease_s
        self._leases.move_to_end(entry.key)
        return True

    def reject(self, lease: Lease, reason: str) -> bool:
        """Make it a dead letter."""
        if (entry := self._leased(lease)) is None:
            return False
        self._end(entry)
        self._bury(entry, reason)
        return True

    def withdraw(self, key: str) -> bool:
        """Deliver it no more. False: it is in no place that it could be taken from."""
        if (entry := self._entries.get(key)) is None:
            return False
        match entry.place:
            case "ready":
                self._ready.remove((entry.sequence, key))
                heapq.heapify(self._ready)
                self._settle(entry)
            case "delayed":
                self._delays.remove((entry.due, key))
                heapq.heapify(self._delays)
                self._settle(entry)
            case "leased":
                entry.withdrawn = True
        return True

    def untaken(self, key: str) -> bool:
        """Whether it waits for its first lease."""
        return key in self._entries and self._entries[key].attempts == 0

    def release(self, owner: int, now: float) -> None:
        """The consumer left: whatever it holds is ready again."""
        for entry in [e for e in self._leases.values() if e.owner == owner]:
            self._end(entry)
            self._again(entry, "the consumer left", now, 0.0)
        del self._held[owner]

    def tick(self, now: float) -> bool:
        """Act on every deadline up to `now`. True when anything changed."""
        changed = False
        while self._leases and (entry := next(iter(self._leases.values()))).due <= now:
            self._end(entry)
            self._again(entry, "the lease ran out", now, 0.0)
            changed = True
        while self._delays and self._delays[0][0] <= now:
            self._make_ready(self._entries[heapq.heappop(self._delays)[1]])
            changed = True
        return changed

    def next_due(self) -> float | None:
        """The next moment at which `tick` may change something."""
        dues = [next(iter(self._leases.values())).due] if self._leases else []
        if self._delays:
            dues.append(self._delays[0][0])
        return min(dues, default=None)

    def state(self, now: float) -> QueueState:
        places = Counter(entry.place for entry in self._entries.values())
        return QueueState(
            queue=self.queue,
            ready=places["ready"],
            leased=places["leased"],
            delayed=places["delayed"],
            dead=len(self._dead),
            oldest_s=max((now - entry.since for entry in self._entries.values()), default=0.0),
        )

    def dead_letters(self) -> list[DeadLetter]:
        return list(self._dead.values())

    def requeue(self, key: str, now: float) -> bool:
        """Put a dead letter back with a fresh count of attempts."""
        if (letter := self._dead.pop(key, None)) is None:
            return False
        self._add(key, letter.body, now)
        return True

    def _add(self, key: str, body: bytes, now: float) -> None:
        entry = _Entry(next(self._sequence), key, body, now)
        self._entries[key] = entry
        self._make_ready(entry)

    def _make_ready(self, entry: _Entry) -> None:
        entry.place = "ready"
        heapq.heappush(self._ready, (entry.sequence, entry.key))

    def _leased(self, lease: Lease) -> _Entry | None:
        entry = self._leases.get(lease.key)
        return entry if entry and entry.token == lease.token else None

    def _end(self, entry: _Entry) -> None:
        self._held[entry.owner] -= 1
        del self._leases[entry.key]

    def _again(self, entry: _Entry, why: str, now: float, delay_s: float) -> None:
        if entry.withdrawn:
            self._settle(entry)
        elif entry.attempts >= self.options.max_attempts:
            self._bury(entry, f"{entry.attempts} deliveries, the last: {why}")
        elif delay_s > 0:
            entry.place, entry.due = "delayed", now + delay_s
            heapq.heappush(self._delays, (entry.due, entry.key))
        else:
            self._make_ready(entry)

    def _settle(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self._settled[entry.key] = None
        if len(self._settled) > REMEMBERED:
            self._settled.popitem(last=False)

    def _bury(self, entry: _Entry, reason: str) -> None:
        del self._entries[entry.key]
        self._dead[entry.key] = DeadLetter(
            queue=self.queue, key=entry.key, body=entry.body, reason=reason, attempts=entry.attempts
        )


class _Queue:
    """A core and the signal of its changes."""

    def __init__(self, core: QueueCore, clock: Callable[[], float]) -> None:
        self.core, self.clock, self.changed = core, clock, Signal()

    def tick(self) -> None:
        if self.core.tick(self.clock()):
            self.changed.notify()

    async def wait(self) -> None:
        """Until something changes, or the core's next deadline is there."""
        due = self.core.next_due()
        await self.changed.wait(None if due is None else max(0.0, due - self.clock()))


class MemoryDelivery:
    """One message under lease: see `runtime.bus.protocol.Delivery`."""

    def __init__(self, queue: _Queue, lease: Lease) -> None:
        self._queue, self._lease = queue, lease

    @property
    def key(self) -> str:
        return self._lease.key

    @property
    def body(self) -> bytes:
        return self._lease.body

    @property
    def attempt(self) -> int:
        return self._lease.attempt

    async def ack(self) -> None:
        self._tell(self._queue.core.ack(self._lease))

    async def nack(self, delay_s: float = 0.0) -> None:
        self._tell(self._queue.core.nack(self._lease, delay_s, self._queue.clock()))

    async def extend(self) -> None:
        self._queue.core.extend(self._lease, self._queue.clock())

    async def reject(self, reason: str) -> None:
        self._tell(self._queue.core.reject(self._lease, reason))

    def _tell(self, changed: bool) -> None:
        if changed:
            self._queue.changed.notify()


class MemoryBus:
    """See `runtime.bus.protocol.Bus`. Lives in one event loop; nothing outlives it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._owner = itertools.count(1)
        self._closed = False

    async def declare(self, queue: str, options: QueueOptions) -> None:
        if queue not in self._queues:
            self._queues[queue] = _Queue(QueueCore(queue, options), self._clock)

    async def publish(self, queue: str, body: bytes, *, key: str) -> None:
        await anyio.lowlevel.checkpoint()
        target = self._open(queue)
        while not target.core.publish(key, body, self._clock()):
            await target.changed.wait(None)
            self._open(queue)
        target.changed.notify()

    @asynccontextmanager
    async def consume(self, queue: str, *, slots: int) -> AsyncIterator[AsyncIterator[MemoryDelivery]]:
        source, owner = self._open(queue), next(self._owner)
        try:
            yield _Deliveries(lambda: self._open(queue), owner, slots)
        finally:
            source.core.release(owner, self._clock())
            source.changed.notify()

    async def withdraw(self, queue: str, *, key: str) -> None:
        target = self._open(queue)
        if target.core.withdraw(key):
            target.changed.notify()

    async def untaken(self, queue: str, *, key: str) -> bool:
        return self._open(queue).core.untaken(key)

    async def state(self, queue: str) -> QueueState:
        self._queues[queue].tick()
        return self._queues[queue].core.state(self._clock())

    async def dead_letters(self, queue: str) -> list[DeadLetter]:
        self._queues[queue].tick()
        return self._queues[queue].core.dead_letters()

    async def requeue(self, queue: str, key: str) -> bool:
        target = self._open(queue)
        found = target.core.requeue(key, self._clock())
        if found:
            target.changed.notify()
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closed = True
        for queue in self._queues.values():
            queue.changed.notify()

    def _open(self, queue: str) -> _Queue:
        if self._closed:
            raise BusClosed(queue)
        return self._queues[queue]


class _Deliveries:
    """The iterator of one consumer. No await stands between taking a lease and handing it over."""

    def __init__(self, queue: Callable[[], _Queue], owner: int, slots: int) -> None:
        self._queue, self._owner, self._slots = queue, owner, slots

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemoryDelivery:
        await anyio.lowlevel.checkpoint()
        while True:
            queue = self._queue()
            queue.tick()
            if queue.core.held(self._owner) < self._slots:
                lease = queue.core.lease(self._owner, queue.clock())
                if lease is not None:
                    return MemoryDelivery(queue, lease)
            await queue.wait()
