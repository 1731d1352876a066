"""The kind of job that the drills disturb: a question to the model endpoint, then a command in a real sandbox.

The second stage travels to workers. Options: `count` items, `pace_s` of each command. Without an endpoint in the job's
settings the first stage answers by itself. An item's result is what the command really printed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runtime.bus import MemoryBus
from runtime.chat.client import ChatClient
from runtime.chat.endpoint import open_client
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.daemon.kind import JobKind, JobPlace, JobWork, Travel
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.source import Once
from runtime.stage import Backoff, Message, Stage
from runtime.store import Store
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine
from sandbox.spec import BuildContext, Limits, SandboxSpec

SOON = Backoff(first_s=0.05, ceiling_s=0.5)
LIMITS = Limits(memory_mb=128, pids=64, disk_mb=32, lifetime_s=300)


class Asked(Message, frozen=True, kw_only=True, tag=True):
    number: int


class Worded(Message, frozen=True, kw_only=True, tag=True):
    word: str


class Printed(Message, frozen=True, kw_only=True, tag=True):
    output: str


class Ground:
    """What the stages are given."""

    def __init__(self, engine: Engine, pace_s: float, client: ChatClient | None = None) -> None:
        self.engine, self.pace_s, self.client = engine, pace_s, client


def word(number: int) -> str:
    """What the endpoint is expected to say about a number."""
    return f"word-{number * 7}"


async def ask(message: Asked, ground: Ground) -> list[Message]:
    said = word(message.number)
    if ground.client is not None:
        question = ChatMessage(role="user", content=f"number {message.number}")
        answer = await ground.client.complete(ChatRequest(messages=(question,), purpose="drill", nonce=message.item))
        said = answer.text
    return [Worded(item=message.item, run_id=message.run_id, word=said)]


async def run(message: Worded, ground: Ground) -> list[Message]:
    built = await ground.engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
    spec = SandboxSpec(image=built.image, limits=LIMITS, run_id=message.run_id, purpose=message.item)
    async with await ground.engine.create(spec) as sandbox:
        session = await sandbox.open_session()
        await session.run(f"echo {message.word} > kept", timeout_s=60)
        got = await session.run(f"sleep {ground.pace_s}; cat kept", timeout_s=60)
    return [Printed(item=message.item, run_id=message.run_id, output=got.output)]


STAGES = (
    Stage(
        name="ask", subscribes="asked", takes=Asked, publishes={Worded: "worded"}, handler=ask,
        slots=4, attempts=100_000, backoff=SOON,
    ),
    Stage(
        name="run", subscribes="worded", takes=Worded, publishes={Printed: "printed"}, handler=run,
        slots=4, attempts=100_000, backoff=SOON,
    ),
)  # fmt: skip


def place(settings: Any, options: Mapping[str, Any]) -> JobPlace:
    out = Path(options["out"])
    key = hashlib.sha256(str(out).encode()).hexdigest()[:8]
    return JobPlace(run_id=f"drill-{key}", store=settings.paths.state / "drill" / key / "store.sqlite", out=out)


def check(settings: Any, options: Mapping[str, Any]) -> None:
    """All that a drill asks for can be run."""


@asynccontextmanager
async def _client(settings: Any, store: Store):
    if settings.chat.base_url:
        async with open_client(settings.chat, store, most=4) as client:
            yield client
    else:
        yield None


async def carry(work: JobWork) -> dict[str, Any]:
    there = place(work.settings, work.options)
    asked = [Asked(item=f"{n:03d}", run_id=there.run_id, number=n) for n in range(int(work.options["count"]))]
    async with Store(there.store) as store, MemoryBus() as bus, _client(work.settings, store) as client:
        await store.open_run(there.run_id, command="drill", settings="{}")
        runner = Runner(
            stages=work.stages, bus=bus, store=store, run_id=there.run_id, source=Once(asked), on_event=work.on_event,
            context=Ground(work.engine, float(work.options["pace_s"]), client), limits=work.limits,
        )  # fmt: skip
        work.announce(runner)
        result = await runner.run()
        routes = Routes(STAGES)
        ends = [routes.decode(entry.body) for entry in await store.terminal(there.run_id)]
    return {"state": result.state, "items": sorted([m.item, getattr(m, "output", str(m))] for m in ends)}


@asynccontextmanager
async def worker(settings, run_id, recorded, engine, limits):
    yield Ground(engine, float(recorded))


JOB = JobKind(
    name="drill", stages=STAGES, check=check, place=place, run=carry,
    travel=Travel(stages=("run",), recorded=lambda ground: str(ground.pace_s), worker=worker),
)  # fmt: skip
