"""Kinds of jobs as another package would register them: two quick stages, the second of which travels to workers.

Options: `count` items; `pace_s` a piece; `broken`, items that fail however often they come while `mended` is no file;
`held`, items that stay in the first stage for so long; `refuses`, what only a user could mend: `stage`, its work,
`worker`, what its stages are given; `child`, started by the process, which would outlive it; `dies`, the process, when
it has one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from runtime.bus import MemoryBus
from runtime.daemon.kind import JobKind, JobPlace, JobWork, Travel
from runtime.errors import ChatRejected, UserError
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.source import Once
from runtime.stage import Backoff, Message, RetryLater, Stage
from runtime.store import Store

QUICK = Backoff(first_s=0.001, ceiling_s=0.002)


class Log(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Plank(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Board(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Shop:
    """What the stages are given."""

    def __init__(
        self, pace_s: float, broken: list[str], mended: str, refuses: str = "", held: Sequence[str] = ()
    ) -> None:
        self.pace_s, self.broken, self.mended, self.refuses, self.held = pace_s, broken, mended, refuses, held

    def options(self) -> str:
        return f"{self.pace_s}|{','.join(self.broken)}|{self.mended}|{self.refuses}"


async def saw(message: Log, shop: Shop) -> list[Message]:
    while message.item in shop.held and not Path(shop.mended).exists():  # noqa: ASYNC110 (made by another process)
        await anyio.sleep(0.01)
    await anyio.sleep(shop.pace_s)
    return [Plank(item=message.item, run_id=message.run_id, number=message.number)]


async def plane(message: Plank, shop: Shop) -> list[Message]:
    if message.item in shop.broken and not Path(shop.mended).exists():
        raise RetryLater("the plane is blunt")
    if shop.refuses == "stage" and not Path(shop.mended).exists():
        raise ChatRejected("http://model", "no such model", status=404)
    await anyio.sleep(shop.pace_s)
    return [Board(item=message.item, run_id=message.run_id, number=message.number * 2)]


STAGES = (
    Stage(name="saw", subscribes="log", takes=Log, publishes={Plank: "plank"}, handler=saw, slots=3, backoff=QUICK),
    Stage(
        name="plane", subscribes="plank", takes=Plank, publishes={Board: "board"}, handler=plane,
        slots=2, limits=("run",), attempts=2, backoff=QUICK,
    ),
)  # fmt: skip


def place(settings: Any, options: Mapping[str, Any]) -> JobPlace:
    out = Path(options["out"])
    key = hashlib.sha256(str(out).encode()).hexdigest()[:8]
    return JobPlace(run_id=f"shop-{key}", store=settings.paths.state / "shop" / key / "store.sqlite", out=out)


def check(settings: Any, options: Mapping[str, Any]) -> None:
    if int(options.get("count", 0)) < 1:
        raise UserError("count", "is less than 1", "Ask for something")


def start_child() -> None:
    print("a child:", subprocess.Popen(["sleep", "600"]).pid, flush=True)


async def run(work: JobWork) -> dict[str, Any]:
    if "child" in work.options:
        start_child()
    if "dies" in work.options:
        print("the shed collapses", flush=True)
        os.abort()
    options, there = work.options, place(work.settings, work.options)
    logs = [Log(item=f"{n:03d}", run_id=there.run_id, number=n) for n in range(int(options["count"]))]
    shop = Shop(
        float(options.get("pace_s", 0.0)), list(options.get("broken", ())), str(options.get("mended", "")),
        str(options.get("refuses", "")), list(options.get("held", ())),
    )  # fmt: skip
    async with Store(there.store) as store, MemoryBus() as bus:
        await store.open_run(there.run_id, command="shop", settings="{}")
        runner = Runner(
            stages=work.stages, bus=bus, store=store, context=shop, run_id=there.run_id,
            source=Once(logs), on_event=work.on_event, limits=work.limits,
        )  # fmt: skip
        work.announce(runner)
        result = await runner.run()
        routes = Routes(STAGES)
        ends = [routes.decode(entry.body) for entry in await store.terminal(there.run_id)]
    boards = sorted([m.item, m.number] for m in ends if isinstance(m, Board))
    return {"state": result.state, "reason": result.reason, "boards": boards}


@asynccontextmanager
async def worker(settings, run_id, recorded, engine, limits):
    pace, broken, mended, refuses = recorded.split("|")
    if refuses == "worker" and not Path(mended).exists():
        raise UserError("loom", "has no warp", "Give it one")
    yield Shop(float(pace), [item for item in broken.split(",") if item], mended, refuses)


JOB = JobKind(
    name="shop", stages=STAGES, check=check, place=place, run=run,
    travel=Travel(stages=("plane",), recorded=lambda shop: shop.options(), worker=worker),
)  # fmt: skip
APART = replace(JOB, name="shed", travel=None, apart=True)
"""The same in a process of its own."""
