"""Many items through five stages with faults on the way: what grows, what comes late, what is lost.

The real runner, store (on disk) and bus; a share of the items runs a command in a real sandbox; the faults are those of
`bench.faulty`. Checked at the end: every item is in exactly one terminal record, and no sandbox is left. Sampled all
the way: memory, descriptors, and how late the event loop answers.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio

from bench.faulty import RUN, Chances, Fault, Field, Forgetful, Window, sown, stages
from bench.nats_server import nats_server
from bench.record import keep
from runtime.bus.memory import MemoryBus
from runtime.bus.nats import NatsBus
from runtime.bus.protocol import Bus
from runtime.events import Kind, RunEvent
from runtime.routes import Routes
from runtime.runner import Runner, RunResult
from runtime.stage import Rejected
from runtime.store import Store
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine
from sandbox.open import open_engine
from sandbox.spec import BuildContext

TICK_S = 0.02
WARM = 0.25
"""The first part of a run fills caches and windows; growth is judged on the rest."""


def descriptors() -> int:
    """Open in this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Histogram:
    """Milliseconds, kept as counts: of fixed size, whatever the length of the run."""

    def __init__(self) -> None:
        self._counts = [0] * 10_001
        self.max_ms = 0.0

    def add(self, seconds: float) -> None:
        late_ms = max(0.0, seconds * 1000)
        self.max_ms = max(self.max_ms, late_ms)
        self._counts[min(10_000, int(late_ms))] += 1

    def quantile_ms(self, share: float) -> int:
        """Rounded up to a whole millisecond."""
        left = share * sum(self._counts)
        for late_ms, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return late_ms + 1
        return 10_000


class Lag:
    """How late the event loop answers; and how much CPU its thread used since the last tick.

    On a machine that others use too, the first holds their load as well: the second is ours alone, and no callback of
    ours held the loop for longer.
    """

    def __init__(self) -> None:
        self.late, self.busy = Histogram(), Histogram()

    async def watch(self) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await anyio.sleep(TICK_S)
            self.late.add(time.perf_counter() - before - TICK_S)
            self.busy.add(time.thread_time() - cpu)


@dataclass
class Samples:
    """Memory and descriptors over time."""

    at_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    async def watch(self, every_s: float) -> None:
        began = time.monotonic()
        while True:
            self.at_s.append(time.monotonic() - began)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.rss_mib.append(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
            self.descriptors.append(descriptors())
            await anyio.sleep(every_s)

    def settled(self, values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        """Times and values after the warm-up."""
        first = int(WARM * len(self.at_s))
        return self.at_s[first:], values[first:]

    def slope_per_minute(self, values: Sequence[float]) -> float:
        return statistics.linear_regression(*self.settled(values)).slope * 60


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """What a soak came to."""

    result: RunResult
    ends: Counter[str]
    """How often each item is in a terminal record."""
    rejected: Counter[str]
    told: Counter[str]
    injected: Counter[Fault]
    commands: int
    sandboxes_left: int
    samples: Samples
    lag: Lag
    spent_s: float

    def row(self) -> dict[str, Any]:
        rss, descriptors = self.samples.rss_mib, self.samples.descriptors
        _, warm = self.samples.settled(rss)
        return {
            "items": self.result.admitted,
            "minutes": self.spent_s / 60,
            "in one record": sum(count == 1 for count in self.ends.values()),
            "commands": self.commands,
            "retries": self.told[Kind.RETRY],
            "bugs": self.told[Kind.FAULT],
            "stalls": self.told[Kind.STALLED],
            "rss MiB": f"{warm[0]:.1f}-{max(warm):.1f}",
            "MiB/min": self.samples.slope_per_minute(rss),
            "descriptors": f"{min(descriptors)}-{max(descriptors)}",
            "per min": self.samples.slope_per_minute(descriptors),
            "lag p50 ms": self.lag.late.quantile_ms(0.5),
            "p99 ms": self.lag.late.quantile_ms(0.99),
            "max ms": self.lag.late.max_ms,
            "busy p99 ms": self.lag.busy.quantile_ms(0.99),
            "busy max ms": self.lag.busy.max_ms,
        }


async def soak(
    *,
    items: int,
    minutes: float,
    seed: int,
    bus: Bus,
    engine: Engine,
    directory: Path,
    chances: Chances,
    deadline_s: float = 10.0,
) -> Soaked:
    """Carry `items` through the stages in about `minutes`. `bus` is entered already, as is `engine`."""
    built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
    told: Counter[str] = Counter()

    def listen(event: RunEvent) -> None:
        told[event.kind] += 1

    pipeline = stages(deadline_s=deadline_s)
    samples, lag, began = Samples(), Lag(), time.monotonic()
    ground = Field(seed=seed, chances=chances, pause_s=minutes * 60 / items, engine=engine, image=built.image)
    async with Store(directory / "soak.sqlite") as store:
        await store.open_run(RUN, command="soak", settings="{}")
        runner = Runner(
            stages=pipeline, bus=Forgetful(bus, ground), store=store, context=ground, run_id=RUN,
            source=Window(items), on_event=listen,
        )  # fmt: skip
        async with anyio.create_task_group() as group:
            group.start_soon(samples.watch, max(0.2, minutes * 60 / 500))
            group.start_soon(lag.watch)
            result = await runner.run()
            group.cancel_scope.cancel()
        ends = await store.terminal(RUN)
    routes = Routes(pipeline)
    decoded = [routes.decode(entry.body) for entry in ends]
    return Soaked(
        result=result,
        ends=Counter(entry.item for entry in ends),
        rejected=Counter(message.reason for message in decoded if isinstance(message, Rejected)),
        told=told,
        injected=ground.injected,
        commands=ground.commands,
        sandboxes_left=len(await engine.inventory()),
        samples=samples,
        lag=lag,
        spent_s=time.monotonic() - began,
    )


@asynccontextmanager
async def open_ground(bus: Literal["memory", "nats"], *, cache: Path, url: str) -> AsyncIterator[dict[str, Any]]:
    """Bus, engine and directory for one soak."""
    with tempfile.TemporaryDirectory(prefix="termloom-soak-") as name:
        directory = Path(name)
        async with open_engine("namespace", cache=cache, state=directory / "engine", progress=print) as engine:
            if bus == "memory":
                async with MemoryBus() as memory:
                    yield {"bus": memory, "engine": engine, "directory": directory}
            else:
                with nats_server(url) as server:
                    async with NatsBus(server, prefix="soak") as nats:
                        yield {"bus": nats, "engine": engine, "directory": directory}


async def measure(
    *, bus: Literal["memory", "nats"], items: int, minutes: float, seed: int, cache: Path, url: str
) -> None:
    """Print and keep one row. Raises: AssertionError when an item is lost or a sandbox is left."""
    print(f"seed {seed}; {items} items over {minutes:g} minutes, {bus} bus")
    async with open_ground(bus, cache=cache, url=url) as ground:
        got = await soak(items=items, minutes=minutes, seed=seed, chances=Chances(), **ground)
    print(f"injected: {dict(got.injected)}; rejected: {dict(got.rejected)}")
    keep("soak", [got.row()], bus=bus, seed=seed, injected=got.injected, rejected=got.rejected, told=got.told,
         samples={"at_s": got.samples.at_s, "rss_mib": got.samples.rss_mib, "descriptors": got.samples.descriptors},
         )  # fmt: skip
    assert got.result.pending == 0, got.result
    assert got.ends == Counter(sown(number).item for number in range(items)), "an item is not in exactly one record"
    assert got.sandboxes_left == 0
