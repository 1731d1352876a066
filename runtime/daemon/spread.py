"""Work for other machines: the stages that a kind lets travel are sent over the bus, everything else stays here.

The run stays where it is: its runner, source and store know nothing of this. A stage that travels has a handler that
sends the message out and waits for the answer; `runtime.daemon.worker` does the work, here and on every machine that
runs `termloom work`.

Invariants:
- Each attempt is one call with a name of its own. A call that nobody waits for any more is withdrawn: no worker begins
  with it. One that a worker has taken is worked off, and its answer dropped.
- A run that drains withdraws the calls that no worker has taken, and waits for the others.
- Several daemons may share a server and its workers: a call says in which queue its daemon waits for the answer, and
  a daemon finds its own queue again when it is started anew.
- A worker that dies leaves its call under a lease that runs out: another one takes it. The daemon that dies sends anew
  what is unfinished at its next start. Handlers are idempotent, so neither shows.
- What fails over there fails here in the same way: again, at its end, as a bug with its traceback, or, where only the
  user can mend it, as the end of the run.
- An answer that this version cannot read is a dead letter, and its call is tried again.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Literal

import anyio
import msgspec
import structlog

from runtime.bus.open import open_bus
from runtime.bus.protocol import Bus, Delivery, QueueOptions, QueueState
from runtime.daemon.kind import JobKind, JobPlace, job_kinds
from runtime.daemon.place import name_of
from runtime.daemon.sections import travelling
from runtime.errors import BudgetExhausted, BusClosed, RuntimeFault, WorkRefused, WorkTakenBack, WorkUnreadable
from runtime.events import Kind, RunEvent
from runtime.latch import Latch
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.settings import Settings
from runtime.stage import Message, Rejected, RetryLater, Stage
from sandbox.engine import Engine

PREFIX = "termloom-work"
LEASE_S = 30.0
_WITHDRAW_S = 5.0
"""For taking back a call that is not waited for any more; then it is left to the workers."""
_OUT_AT_ONCE = 256
"""Calls of one stage that are out or wait for a worker."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one message."""

    call: str
    answers: str
    """The queue in which the answer is waited for."""
    kind: str
    stage: str
    run_id: str
    sections: dict[str, Any]
    """Of the job's settings, without secrets."""
    recorded: str
    body: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    call: str
    outcome: Literal["done", "again", "ended", "drain", "refused", "fault"]
    bodies: tuple[bytes, ...] = ()
    reason: str = ""
    detail: str = ""
    delay_s: float | None = None


class RemoteFault(RuntimeFault):
    """A bug in a handler that ran elsewhere; the message is its traceback."""


def queue_of(kind: str, stage: str) -> str:
    return f"{kind}-{stage}"


def stages_that_travel(kind: JobKind) -> list[Stage]:
    return [stage for stage in kind.stages if kind.travel and stage.name in kind.travel.stages]


async def declare(bus: Bus, queue: str) -> None:
    await bus.declare(queue, QueueOptions(lease_s=LEASE_S, max_attempts=2**31 - 1))


async def declare_work(bus: Bus) -> list[str]:
    """Every queue of calls, by name."""
    queues = [queue_of(kind.name, stage.name) for kind in job_kinds().values() for stage in stages_that_travel(kind)]
    for queue in queues:
        await declare(bus, queue)
    return queues


class Here:
    """No bus: every stage runs in this process."""

    def stages_for(self, kind: JobKind, place: JobPlace, settings: Settings) -> tuple[Stage, ...]:
        return kind.stages

    async def queues(self) -> Sequence[QueueState]:
        return ()

    def listen(self, event: RunEvent) -> None:
        pass


class Abroad:
    """Sends calls out and hands answers to those who wait."""

    def __init__(self, bus: Bus, queues: Sequence[str], *, answers: str) -> None:
        self._bus, self._queues, self.answers = bus, queues, answers
        self._waiting: dict[str, tuple[anyio.Event, list[Answer | WorkUnreadable]]] = {}
        self._drains: dict[str, Latch] = {}
        """By run: each time that it is taken up it has another one."""
        self._log = structlog.stdlib.get_logger("termloom.daemon")

    def stages_for(self, kind: JobKind, place: JobPlace, settings: Settings) -> tuple[Stage, ...]:
        routes, away = Routes(kind.stages), stages_that_travel(kind)
        drain = self._drains[place.run_id] = Latch()
        return tuple(
            self._sent(kind, stage, routes, settings, drain) if stage in away else stage for stage in kind.stages
        )

    def listen(self, event: RunEvent) -> None:
        """To every run: one that drains waits only for the calls that are taken."""
        if event.kind is Kind.DRAINING and event.run in self._drains:
            self._drains[event.run].set()

    async def queues(self) -> Sequence[QueueState]:
        return [await self._bus.state(queue) for queue in (*self._queues, self.answers)]

    def _sent(self, kind: JobKind, stage: Stage, routes: Routes, settings: Settings, drain: Latch) -> Stage:
        assert kind.travel is not None, "none of its stages travels"
        sections, recorded = travelling(settings), kind.travel.recorded

        async def handler(message: Message, context: Any) -> list[Message]:
            call = Call(
                call=f"{message.run_id}/{stage.name}/{message.item}/{secrets.token_hex(6)}",
                answers=self.answers,
                kind=kind.name,
                stage=stage.name,
                run_id=message.run_id,
                sections=sections,
                recorded=recorded(context),
                body=routes.admit(message).body,
            )
            return _opened(await self._ask(call, drain), message, stage, routes)

        # The worker keeps the stage's deadline: here the call also waits for a worker to be free.
        return dataclasses.replace(stage, handler=handler, slots=_OUT_AT_ONCE, deadline_s=math.inf)

    async def _ask(self, call: Call, drain: Latch) -> Answer:
        answered, answers = self._waiting[call.call] = anyio.Event(), []
        queue, published = queue_of(call.kind, call.stage), False
        try:
            with drain.until_set():
                await self._bus.publish(queue, msgspec.msgpack.encode(call), key=call.call)
                published = True
                await answered.wait()
            if published and not answers and not await self._bus.untaken(queue, key=call.call):
                await answered.wait()
        finally:
            del self._waiting[call.call]
            if not answers:
                await self._withdraw(call)
        if not answers:
            raise WorkTakenBack(call.call)
        if isinstance(answers[0], WorkUnreadable):
            raise answers[0]
        return answers[0]

    async def _withdraw(self, call: Call) -> None:
        with anyio.move_on_after(_WITHDRAW_S, shield=True), suppress(BusClosed):
            await self._bus.withdraw(queue_of(call.kind, call.stage), key=call.call)

    async def receive(self) -> None:
        """Hand out answers until cancelled."""
        async with self._bus.consume(self.answers, slots=_OUT_AT_ONCE) as deliveries:
            async for delivery in deliveries:
                try:
                    answer = msgspec.msgpack.decode(delivery.body, type=Answer)
                except msgspec.MsgspecError as error:
                    await self._refuse(delivery, WorkUnreadable(version("termloom"), str(error)))
                else:
                    self._hand_out(answer.call, answer)
                    await delivery.ack()

    async def _refuse(self, delivery: Delivery, unreadable: WorkUnreadable) -> None:
        """Keep an answer of another version. Whatever it holds, its key is the call."""
        self._log.error("an answer cannot be read", call=delivery.key, detail=str(unreadable))
        self._hand_out(delivery.key, unreadable)
        await delivery.reject(str(unreadable))

    def _hand_out(self, call: str, answer: Answer | WorkUnreadable) -> None:
        if waiting := self._waiting.get(call):
            event, answers = waiting
            answers.append(answer)
            event.set()


def _opened(answer: Answer, message: Message, stage: Stage, routes: Routes) -> list[Message]:
    match answer.outcome:
        case "done":
            return [routes.decode(body) for body in answer.bodies]
        case "ended":
            return [
                Rejected(
                    item=message.item,
                    run_id=message.run_id,
                    stage=stage.name,
                    reason=answer.reason,
                    detail=answer.detail,
                )
            ]
        case "again":
            raise RetryLater(answer.reason, delay_s=answer.delay_s)
        case "drain":
            raise BudgetExhausted("a worker", answer.reason)
        case "refused":
            raise WorkRefused(answer.detail)
        case "fault":
            raise RemoteFault(answer.detail)


@asynccontextmanager
async def open_spread(settings: Settings, engine: Engine, limits: Limits) -> AsyncIterator[Here | Abroad]:
    """As the settings say: here alone, or with other machines. The daemon's own engine works in either case."""
    from runtime.daemon.worker import Worker

    if not settings.daemon.bus:
        yield Here()
        return
    async with open_bus(settings.daemon.bus, prefix=PREFIX) as bus:
        abroad = Abroad(bus, await declare_work(bus), answers=f"results-{name_of(settings.paths.state)}")
        await declare(bus, abroad.answers)
        async with anyio.create_task_group() as group:
            group.start_soon(abroad.receive)
            group.start_soon(Worker(bus, settings, engine=engine, limits=limits).run)
            yield abroad
            group.cancel_scope.cancel()
