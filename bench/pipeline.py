"""How much of a model's concurrency generation keeps busy, against the bound and against whole batches.

Everything is the product's own, stages, runner, bus, limits, store, chat client over HTTP, but for two ends: the model
is played and its latencies are drawn (log-normal, each call its own by seed), and sandboxes answer at once, for what is
looked at is scheduling. Both arrangements make the same calls with the same latencies:

- *pipeline*: the runner; an item moves the moment it can;
- *whole batches*: every item finishes a stage before the next stage begins, all items of a stage at once.

The bound is the sum of all latencies over the concurrency: a machine that never lets a place go free. It cannot be
reached, because the last items come to an end while nothing is left to fill the places they leave.
"""

from __future__ import annotations

import ast
import math
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from generators.chat.played import PlayedModel
from generators.context import GenerationContext
from generators.messages import Certified, Environment, Rejected, Sampled
from generators.roles import Played
from generators.run import open_players
from generators.stages import STAGES
from generators.taxonomy import load_taxonomy
from runtime.agent.scripted import ScriptedSession
from runtime.bus import MemoryBus
from runtime.chat.script import LogNormal, Said
from runtime.chat.scripted import ScriptedServer
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.settings import Settings, load_settings
from runtime.source import Once
from runtime.stage import Message
from runtime.store import Store
from sandbox.engine import Engine
from sandbox.spec import BuildResult, ExecResult, FailureClass, File, GradedTest, Suite, Verdict

MEDIAN_S, P95_S = 4.0, 20.0
SIGMA = math.log(P95_S / MEDIAN_S) / 1.645
PIPELINE = STAGES[:-1]
RUN = "bench"
_RIGHT = ("initial", "reference", "another day", "script", "solve")
"""Gradings that pass."""


class _Sandbox:
    """Answers at once, and never anything."""

    async def open_session(self) -> ScriptedSession:
        return ScriptedSession(lambda _: "")

    async def exec(self, argv: Sequence[str], **_: object) -> ExecResult:
        return ExecResult(exit_code=0, stdout=b"[]", stderr=b"")

    async def put(self, files: Sequence[File]) -> None:
        pass


class _Bench:
    """In place of `generators.context.Bench`: what is asked for is there, what should pass passes."""

    async def build(self) -> BuildResult:
        return BuildResult(image="image")

    async def image(self) -> str:
        return "image"

    async def attempt(
        self, image: str, suite: Suite, purpose: str, play: Callable[[_Sandbox], Awaitable[Any]]
    ) -> tuple[Any, Verdict]:
        played = await play(_Sandbox())
        done = not isinstance(played, Played) or played.failure == FailureClass.OK
        return played, _verdict(suite, passed=done and purpose.startswith(_RIGHT))

    async def grade(self, image: str, suite: Suite, purpose: str) -> Verdict:
        return _verdict(suite, passed=purpose.startswith(_RIGHT))


def _verdict(suite: Suite, *, passed: bool) -> Verdict:
    source = b"\n\n".join(file.data for file in suite.files if file.path.endswith(".py"))
    names = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    tests = tuple(
        GradedTest(name=name, outcome="passed" if passed else "failed", exception="" if passed else "AssertionError")
        for name in names
        if name.startswith("test_")
    )
    failure = FailureClass.OK if passed else FailureClass.AGENT_FAIL
    return Verdict(reward=float(passed), failure=failure, tests=tests)


@dataclass(frozen=True, kw_only=True)
class _Context(GenerationContext):
    def bench(self, item: str, environment: Environment) -> Any:
        return _Bench()


class _Timed:
    """A script that notes when each call came."""

    def __init__(self, script: PlayedModel) -> None:
        self._script = script
        self.came: list[float] = []

    def __call__(self, request: Mapping[str, Any], number: int) -> Said:
        self.came.append(time.perf_counter())
        return self._script(dict(request), number)


@dataclass(frozen=True)
class Measured:
    """One arrangement, in seconds of the clock."""

    makespan_s: float
    latency_s: float
    """Of all calls together."""
    calls: int
    ended: int
    rejected: int
    tail_s: float
    """From the last moment at which every place was taken."""
    busy: float
    """Share of the places that were taken before that moment."""


async def _run(arrange: Callable[[_Context, Store, Sequence[Sampled]], Awaitable[list[Message]]],
               *, tasks: int, concurrency: int, scale: float, seed: int) -> Measured:  # fmt: skip
    latency = LogNormal(median_s=MEDIAN_S * scale, sigma=SIGMA, seed=seed)
    script = _Timed(PlayedModel(levels=range(1, 7), bad=0.0, slip_rate=0.0))
    async with ScriptedServer(script, latency=latency) as server:
        settings = load_settings(
            sets=[
                "generate.author=chat",
                f"generate.count={tasks}",
                f"limits.chat={concurrency}",
                f"chat.base_url={server.base_url}",
                "chat.model=played",
            ]
        )
        async with _context(settings) as (context, store):
            taxonomy = load_taxonomy()
            items = [
                Sampled(item=f"{seed}-{n:05d}", run_id=RUN, blueprint=taxonomy.draw(seed, n)) for n in range(tasks)
            ]
            began = time.perf_counter()
            ends = await arrange(context, store, items)
            ended = time.perf_counter()
    latencies = [latency.of(seen.id) for seen in server.requests]
    flights = list(zip(script.came, latencies, strict=True))
    full = _last_full(flights, concurrency, began)
    taken_s = sum(min(at + took, full) - at for at, took in flights if at < full)
    return Measured(
        makespan_s=ended - began,
        latency_s=sum(latencies),
        calls=len(latencies),
        ended=len(ends),
        rejected=sum(isinstance(message, Rejected) for message in ends),
        tail_s=ended - full,
        busy=taken_s / (concurrency * (full - began)) if full > began else 0.0,
    )


def _last_full(flights: Sequence[tuple[float, float]], places: int, began: float) -> float:
    """The last moment at which `places` calls were in flight."""
    changes = sorted([(at, 1) for at, _ in flights] + [(at + took, -1) for at, took in flights])
    flying, last = 0, began
    for at, change in changes:
        if flying >= places:
            last = at
        flying += change
    return last


@asynccontextmanager
async def _context(settings: Settings) -> AsyncIterator[tuple[_Context, Store]]:
    with tempfile.TemporaryDirectory(prefix="termloom-bench-") as folder:
        place = Path(folder)
        async with (
            Store(place / "store.sqlite") as store,
            open_players(settings.generate, settings, store) as players,
        ):
            await store.open_run(RUN, command=RUN, settings="{}")
            limits = Limits(settings.limits.sizes())
            yield (
                _Context(
                    engine=cast("Engine", None), limits=limits, players=players, settings=settings.generate,
                    run_id=RUN, seed=settings.generate.seed, out=place,
                ),
                store,
            )  # fmt: skip


async def _pipelined(context: _Context, store: Store, items: Sequence[Sampled]) -> list[Message]:
    async with MemoryBus() as bus:
        runner = Runner(
            stages=PIPELINE, bus=bus, store=store, context=context, run_id=RUN, source=Once(items),
            on_event=lambda _: None, limits=context.limits,
        )  # fmt: skip
        await runner.run()
    routes = Routes(PIPELINE)
    return [routes.decode(entry.body) for entry in await store.terminal(RUN)]


async def _in_batches(context: _Context, store: Store, items: Sequence[Sampled]) -> list[Message]:
    left: list[Message] = list(items)
    ends: list[Message] = []
    for stage in PIPELINE:

        async def one(message: Message, handler: Any = stage.handler) -> Message:
            (result,) = await handler(message, context)
            return cast("Message", result)

        results = await anyio.amap(one, left)
        left = [message for message in results if not isinstance(message, Rejected | Certified)]
        ends += [message for message in results if isinstance(message, Rejected | Certified)]
    return ends


async def measure(*, tasks: int, concurrency: int, scale: float, seed: int) -> None:
    """Print both arrangements against the bound."""
    print(
        f"{tasks} tasks, {concurrency} model calls at once, latency log-normal, median {MEDIAN_S:g} s, p95 {P95_S:g} s,"
        f" time scaled by {scale:g}; sandboxes answer at once"
    )
    print(
        "arrangement    calls   certified   bound s   makespan s   over bound   busy %   tail s   (seconds, unscaled)"
    )
    results = {}
    for name, arrange in (("pipeline", _pipelined), ("whole batches", _in_batches)):
        got = await _run(arrange, tasks=tasks, concurrency=concurrency, scale=scale, seed=seed)
        results[name] = got
        bound = got.latency_s / concurrency
        print(
            f"{name:13} {got.calls:6} {got.ended - got.rejected:11} {bound / scale:9.0f} {got.makespan_s / scale:12.0f}"
            f" {got.makespan_s / bound:12.3f} {100 * got.busy:8.1f} {got.tail_s / scale:8.0f}",
            flush=True,
        )
    pipeline, batches = results["pipeline"], results["whole batches"]
    print(f"whole batches take {batches.makespan_s / pipeline.makespan_s:.2f} times as long")
