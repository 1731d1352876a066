"""Does the work that a daemon sends out: in the daemon itself, and in `termloom work` on any machine.

Invariants:
- A call's lease is extended while it is in work, and ends with the process.
- The answer is on the bus before the call is acknowledged.
- What a job asks for and only its user can mend (a model's name, a key, a base environment that is not to be had) is
  answered: it ends that run, and no worker.
- A worker whose disk or bus fails ends loudly and answers nothing: another one takes its calls.
- A call that this version cannot read is refused to whoever waits for it; where even that cannot be read, it is a dead
  letter.
"""

from __future__ import annotations

import traceback
from importlib.metadata import version
from typing import Any

import anyio
import anyio.abc
import msgspec

from runtime.bus.protocol import Bus, Delivery
from runtime.daemon.kind import JobKind, job_kinds
from runtime.daemon.sections import merged
from runtime.daemon.spread import LEASE_S, Answer, Call, declare, queue_of, stages_that_travel
from runtime.errors import ChatRejected, UserError
from runtime.latch import Latch
from runtime.limits import Limits
from runtime.outcome import Again, Done, Drain, Ended, judge
from runtime.plain_text import encodable
from runtime.routes import LostItem, Routes, UndeclaredMessage, UnencodableMessage
from runtime.settings import Settings
from runtime.stage import Message, Stage
from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of all versions have."""

    call: str
    answers: str


class Worker:
    """Use once. `engine` and `limits` are this process's own."""

    def __init__(self, bus: Bus, settings: Settings, *, engine: Engine, limits: Limits) -> None:
        self._bus, self._settings, self._engine, self._limits = bus, settings, engine, limits
        self._contexts: dict[bytes, _Context] = {}
        """By run and what it was told: a run that is resumed with other settings has another one."""
        self._answers: set[str] = set()
        """Queues for answers that are declared here."""
        self._in_work: set[Delivery] = set()
        self._draining = Latch()
        self.done = 0

    async def run(self) -> None:
        """Work until drained. Raises: what only the user can mend."""
        async with anyio.create_task_group() as background:
            background.start_soon(self._extend_leases)
            self._background = background
            async with anyio.create_task_group() as intake:
                for kind in job_kinds().values():
                    for stage in stages_that_travel(kind):
                        intake.start_soon(self._serve, kind, stage)
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """Take up nothing more; `run` returns when what is in work has been answered."""
        self._draining.set()

    async def _serve(self, kind: JobKind, stage: Stage) -> None:
        queue, routes = queue_of(kind.name, stage.name), Routes(kind.stages)
        async with (
            self._bus.consume(queue, slots=stage.slots) as deliveries,
            anyio.create_task_group() as handlers,
        ):
            with self._draining.until_set():
                async for delivery in deliveries:
                    handlers.start_soon(self._handle, kind, stage, routes, delivery)

    async def _handle(self, kind: JobKind, stage: Stage, routes: Routes, delivery: Delivery) -> None:
        self._in_work.add(delivery)
        try:
            call = msgspec.msgpack.decode(delivery.body, type=Call)
        except msgspec.MsgspecError as error:
            await self._refuse(delivery, f"this worker (termloom {version('termloom')}) cannot read the call: {error}")
        else:
            await self._answer(call.answers, await self._work_off(kind, stage, routes, call))
            await delivery.ack()
            self.done += 1
        finally:
            self._in_work.discard(delivery)

    async def _refuse(self, delivery: Delivery, problem: str) -> None:
        """Answer a call of another version, of which only the envelope can be read."""
        try:
            envelope = msgspec.msgpack.decode(delivery.body, type=_Envelope)
        except msgspec.MsgspecError:
            await delivery.reject(problem)
            return
        detail = f"{problem}. Run the same version of termloom on every machine, then resume the job"
        await self._answer(envelope.answers, Answer(call=envelope.call, outcome="refused", detail=detail))
        await delivery.ack()

    async def _answer(self, queue: str, answer: Answer) -> None:
        if queue not in self._answers:
            await declare(self._bus, queue)
            self._answers.add(queue)
        await self._bus.publish(queue, msgspec.msgpack.encode(answer), key=answer.call)

    async def _work_off(self, kind: JobKind, stage: Stage, routes: Routes, call: Call) -> Answer:
        try:
            context = await self._context(kind, call)
        except Exception as error:
            return _told(call, error)
        return await _attempt(stage, routes, call, context)

    async def _context(self, kind: JobKind, call: Call) -> Any:
        """What the run's stages are given: opened once, held until the worker ends. Raises: why it cannot be opened."""
        key = msgspec.msgpack.encode((call.run_id, call.sections, call.recorded))
        if key not in self._contexts:
            self._contexts[key] = _Context()
            self._background.start_soon(self._hold, key, kind, call)
        holder = self._contexts[key]
        await holder.settled.wait()
        if holder.fault is not None:
            raise holder.fault
        return holder.value

    async def _hold(self, key: bytes, kind: JobKind, call: Call) -> None:
        assert kind.travel is not None, "none of its stages travels"
        holder = self._contexts[key]
        try:
            settings = merged(self._settings, call.sections)
            async with kind.travel.worker(
                settings, call.run_id, call.recorded, self._engine, self._limits.share(kind.name)
            ) as holder.value:
                holder.settled.set()
                await anyio.sleep_forever()
        except Exception as error:
            if holder.settled.is_set():
                raise
            holder.fault = error
            del self._contexts[key]  # the next call tries again
            holder.settled.set()

    async def _extend_leases(self) -> None:
        while True:
            await anyio.sleep(LEASE_S / 3)
            for delivery in list(self._in_work):
                await delivery.extend()


class _Context:
    """The context of one run's stages, or why there is none, once that is settled."""

    def __init__(self) -> None:
        self.settled = anyio.Event()
        self.value: Any = None
        self.fault: Exception | None = None


async def _attempt(stage: Stage, routes: Routes, call: Call, context: Any) -> Answer:
    try:
        message: Message = routes.decode(call.body)
        with anyio.move_on_after(stage.deadline_s):
            messages = tuple(await stage.handler(message, context))
            bodies = tuple(entry.body for entry in routes.outputs(stage, message.item, messages))
            return Answer(call=call.call, outcome="done", bodies=bodies)
    except (LostItem, UndeclaredMessage, UnencodableMessage):
        return Answer(call=call.call, outcome="fault", detail=encodable(traceback.format_exc()))
    except Exception as error:
        return _told(call, error)
    return Answer(call=call.call, outcome="again", reason=f"not done within {stage.deadline_s:g} s")


def _told(call: Call, error: Exception) -> Answer:
    """What an exception comes to, as the runner would judge it. Raises what ends this worker."""
    try:
        outcome = judge(error)
    except (UserError, ChatRejected, EngineUnavailable) as refusal:
        return Answer(call=call.call, outcome="refused", detail=encodable(str(refusal)))
    match outcome:
        case Again(reason, delay_s, fault):
            return Answer(
                call=call.call,
                outcome="fault" if fault else "again",
                reason=encodable(reason),
                detail=encodable(fault),
                delay_s=delay_s,
            )
        case Ended(reason, detail):
            return Answer(call=call.call, outcome="ended", reason=reason, detail=encodable(detail))
        case Drain(reason):
            return Answer(call=call.call, outcome="drain", reason=reason)
        case Done():
            raise AssertionError("an exception is never a result")
