"""The runner: one task group that carries every item of a run through the declared stages.

Invariants:
- Every admitted item ends in exactly one terminal message. At shutdown, admitted = terminal + pending is asserted, and
  pending is empty unless the run was drained.
- Result first, transport second: outputs are in the store before they are published, published before the input is
  acknowledged. What the store does not call pending is never worked on, whatever the bus delivers.
- A worker waits for room in the next queue while it keeps its own place, so back-pressure reaches the source. What the
  source admits is published by a task of its own: no worker ever waits for the first queue.
- Failed attempts are counted in the store; a killed process counts as none. The bus never gives up on its own.
- An operator may pause, drain, cancel an item and requeue a dead letter while it runs; none of it loses an item.
"""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import msgspec
import structlog.contextvars

from runtime.bus.protocol import Bus, Delivery, QueueOptions
from runtime.causes import first_cause
from runtime.errors import ItemConflict, StoreError
from runtime.events import Kind, OnEvent, RunEvent
from runtime.latch import Latch
from runtime.limits import Limits
from runtime.outcome import Again, Done, Drain, Ended, Outcome, judge
from runtime.plain_text import encodable
from runtime.requeue import find_letter, successor
from runtime.routes import LostItem, Routes, UndeclaredMessage, UnencodableMessage
from runtime.source import Source
from runtime.stage import Backoff, Message, Rejected, Stage
from runtime.store import Entry, Note, Store
from runtime.watchdog import LagGauge, Watchdog

LEASE_S = 60.0
ROOM = 256
"""Messages that wait in a queue, beyond those in work, before its publishers wait."""
PULSE_S = 1.0
"""How often leases are looked after and the loop's lag is measured."""
LAG_ALARM_S = 1.0
_CANCELLED = Ended("cancelled", "by the operator")
_NEVER = 2**31 - 1
"""Attempts after which the bus gives up by itself: it must not, see the invariants."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    state: Literal["finished", "drained"]
    admitted: int
    terminal: int
    pending: int
    reason: str = ""
    """Why it was drained."""


@dataclass
class _Work:
    stage: Stage
    delivery: Delivery
    extended: float
    scope: anyio.CancelScope | None = None
    """Of the attempt."""


class Runner:
    """Runs the stages over one run of the store. Use once.

    `bus` belongs to this run alone. `limits` are those that the handlers take through `context`; the watchdog reads
    them to say what an item waits for.
    """

    def __init__(
        self,
        *,
        stages: Sequence[Stage],
        bus: Bus,
        store: Store,
        context: Any,
        run_id: str,
        source: Source,
        on_event: OnEvent,
        limits: Limits | None = None,
        patience_s: float = 300.0,
    ) -> None:
        self._routes = Routes(stages)
        self._bus, self._store, self._context, self._source = bus, store, context, source
        self._run_id, self._on_event = run_id, on_event
        self._watchdog = Watchdog(limits or Limits({}), patience_s=patience_s, clock=time.monotonic)
        self.lag = LagGauge()
        self._pending: dict[tuple[str, str], int] = {}
        """Queue and item of all that is left to do, with the attempts that failed."""
        self._working: dict[str, _Work] = {}
        self._paused, self._unpaused = Latch(), anyio.Event()
        self._cancelled: set[str] = set()
        self._stopping = Latch()
        """Set when nothing new is to be taken up."""
        self._drained = ""
        self._to_admit, self._admissions = anyio.create_memory_object_stream[Entry](math.inf)
        """Unbounded, as all of it is in the store already; the source decides how much there is."""

    async def run(self) -> RunResult:
        """Carry every item to its end, or as far as a drain allows.

        Raises: what only the user can mend (UserError, ChatRejected, EngineUnavailable, StoreError); a source's bug.
        """
        with self._to_admit, self._admissions:
            await self._restore()
            try:
                await self._work_off()
            except BaseExceptionGroup as group:
                raise first_cause(group) from group
        return await self._close()

    def drain(self, reason: str = "asked to") -> None:
        """Take up nothing new; `run` returns when what is in work has finished."""
        if not self._stopping.is_set:
            self._drained = reason
            self._emit(Kind.DRAINING, detail=reason)
            self._stopping.set()

    @property
    def paused(self) -> bool:
        return self._paused.is_set

    def pause(self) -> None:
        """Take up nothing until `unpause`; what is in work goes on to its end."""
        if not self._paused.is_set:
            self._unpaused = anyio.Event()
            self._paused.set()

    def unpause(self) -> None:
        if self._paused.is_set:
            self._paused.clear()
            self._unpaused.set()

    def cancel(self, item: str) -> bool:
        """End a pending item as rejected for the reason `cancelled`: at once in work, else when its turn comes.

        False: no such item is pending.
        """
        if not any(pending == item for _, pending in self._pending):
            return False
        self._cancelled.add(item)
        for work in self._working.values():
            if work.delivery.key == f"{work.stage.subscribes}/{item}" and work.scope is not None:
                work.scope.cancel()
        return True

    async def requeue(self, item: str) -> str | None:
        """Put a dead letter back; returns the name of the item that takes its place.

        None: there is no such letter any more, or the run is over or drains.
        """
        letter = await find_letter(self._store, self._run_id, item)
        if letter is None or self._stopping.is_set:
            return None
        entry = successor(self._routes, letter)
        place = (entry.queue, entry.item)
        if place in self._pending:
            return None  # another call is at it
        self._pending[place] = 0  # from here on the run does not end without it
        if not await self._store.requeue(self._run_id, letter, entry):
            del self._pending[place]
            if not self._pending:
                self._stopping.set()
            return None
        self._enter(entry)
        self._to_admit.send_nowait(entry)
        return entry.item

    async def _restore(self) -> None:
        for stage in self._routes.stages:
            options = QueueOptions(capacity=stage.slots + ROOM, lease_s=LEASE_S, max_attempts=_NEVER)
            await self._bus.declare(stage.subscribes, options)
        first = [self._routes.admit(message) for message in self._source.start()]
        if not await self._store.start(self._run_id, first):
            await self._replay(first)
        pending = await self._store.pending(self._run_id)
        # What is nearest to its end goes first: it frees what it holds and feeds the source.
        for entry in sorted(pending, key=lambda e: -self._routes.depth(e.queue)):
            self._enter(entry)
            self._to_admit.send_nowait(entry)

    async def _replay(self, first: Sequence[Entry]) -> None:
        """Bring the source to where it was: it decides again on what is recorded."""
        decided = {entry.item for entry in first}
        for entry in await self._store.terminal(self._run_id):
            decided.update(new.item for new in self._settle(entry))
        if not decided <= await self._store.items(self._run_id):
            raise StoreError(
                str(self._store.path),
                f"run '{self._run_id}' was recorded with another source or other settings",
                "Resume it with the settings it began with, or start a new run",
            )

    def _settle(self, entry: Entry) -> list[Entry]:
        messages = self._source.settled(self._routes.decode(entry.body))
        return [self._routes.admit(message) for message in messages]

    async def _work_off(self) -> None:
        if not self._pending:
            return
        async with anyio.create_task_group() as pulse:
            pulse.start_soon(self._pulse)
            async with anyio.create_task_group() as work:
                work.start_soon(self._feed)
                for stage in self._routes.stages:
                    work.start_soon(self._serve, stage)
            pulse.cancel_scope.cancel()

    async def _close(self) -> RunResult:
        tally = await self._store.tally(self._run_id)
        assert tally.items == tally.terminal + tally.pending, f"items were lost: {tally}"
        assert self._drained or not tally.pending, f"the run stopped with work left: {tally}"
        if not tally.pending:
            await self._store.finish(self._run_id)
        return RunResult(
            state="drained" if tally.pending else "finished",
            admitted=tally.items,
            terminal=tally.terminal,
            pending=tally.pending,
            reason=self._drained,
        )

    async def _feed(self) -> None:
        with self._stopping.until_set():
            async for entry in self._admissions:
                await self._publish(entry)

    async def _serve(self, stage: Stage) -> None:
        async with (
            self._bus.consume(stage.subscribes, slots=stage.slots) as deliveries,
            anyio.create_task_group() as handlers,
        ):
            while not self._stopping.is_set:
                with self._stopping.until_set(), self._paused.until_set():
                    async for delivery in deliveries:
                        handlers.start_soon(self._handle, stage, delivery)
                await self._until_unpaused()

    async def _handle(self, stage: Stage, delivery: Delivery) -> None:
        message = self._routes.decode(delivery.body)
        if (stage.subscribes, message.item) not in self._pending:
            await delivery.ack()  # done before: its acknowledgement was lost
        elif delivery.key in self._working:
            await delivery.nack(LEASE_S)  # its lease ran out while the loop was blocked; the first one is still at it
        else:
            with self._in_work(stage, delivery, message) as work:
                outcome = await self._attempt(stage, message, work)
                await self._conclude(stage, delivery, message, outcome)

    @contextmanager
    def _in_work(self, stage: Stage, delivery: Delivery, message: Message) -> Iterator[_Work]:
        work = self._working[delivery.key] = _Work(stage, delivery, time.monotonic())
        self._watchdog.started(message.item, stage.name)
        self._emit(Kind.STARTED, stage.name, message.item)
        try:
            with structlog.contextvars.bound_contextvars(run=self._run_id, item=message.item, stage=stage.name):
                yield work
        finally:
            del self._working[delivery.key]
            moved = (stage.subscribes, message.item) not in self._pending
            self._watchdog.ended(message.item, stage.name, moved=moved)

    async def _attempt(self, stage: Stage, message: Message, work: _Work) -> Outcome:
        if message.item in self._cancelled:
            return _CANCELLED
        try:
            with anyio.move_on_after(stage.deadline_s) as work.scope:
                return Done(tuple(await stage.handler(message, self._context)))
        except Exception as error:
            return judge(error)
        assert work.scope.cancelled_caught
        if message.item in self._cancelled:
            return _CANCELLED
        return Again(f"not done within {stage.deadline_s:g} s")

    async def _conclude(self, stage: Stage, delivery: Delivery, message: Message, outcome: Outcome) -> None:
        match outcome:
            case Done(messages):
                try:
                    await self._commit(stage, message.item, messages)
                except (ItemConflict, LostItem, UndeclaredMessage, UnencodableMessage):
                    await self._again(stage, delivery, message, Again("fault", fault=traceback.format_exc()))
                else:
                    await delivery.ack()
            case Again():
                await self._again(stage, delivery, message, outcome)
            case Ended(reason, detail):
                await self._reject(stage, message.item, reason, detail)
                await delivery.ack()
            case Drain(reason):
                await delivery.nack()
                self._emit(Kind.QUEUED, stage.name, message.item)
                self.drain(reason)
        if not self._pending:
            self._stopping.set()

    async def _again(self, stage: Stage, delivery: Delivery, message: Message, again: Again) -> None:
        """Count the failed attempt; then another one after a pause, or the end."""
        kind = Kind.FAULT if again.fault else Kind.RETRY
        again = replace(again, reason=encodable(again.reason), fault=encodable(again.fault))
        detail = again.fault or again.reason
        place = (stage.subscribes, message.item)
        note = Note(item=message.item, kind=kind, stage=stage.name, detail=detail)
        failed = self._pending[place] = await self._store.fail(self._run_id, at=place, note=note)
        self._watchdog.failed(message.item, stage.name, again.reason)
        self._emit(kind, stage.name, message.item, detail=detail)
        if failed < stage.attempts:
            await delivery.nack(max(again.delay_s or 0.0, _pause(stage.backoff, failed)))
        elif again.concerns_all and failed == stage.attempts:
            self.drain(again.reason)  # once: were it the item's own fault after all, no resumed run would end
            await delivery.nack()
        else:
            reason = "fault" if again.fault else f"gave_up: {again.reason}"
            await self._reject(stage, message.item, reason, detail, given_up=reason)
            await delivery.reject(reason)

    async def _reject(self, stage: Stage, item: str, reason: str, detail: str, *, given_up: str = "") -> None:
        rejected = Rejected(
            item=item, run_id=self._run_id, stage=stage.name, reason=encodable(reason), detail=encodable(detail)
        )
        await self._commit(stage, item, [rejected], given_up=given_up)

    async def _commit(self, stage: Stage, item: str, messages: Sequence[Message], *, given_up: str = "") -> None:
        """Result into the store, then onto the bus."""
        outputs = self._routes.outputs(stage, item, messages)
        admitted = await self._store.commit(
            self._run_id,
            done=(stage.subscribes, item),
            outputs=outputs,
            settle=self._settle,
            notes=[Note(item=item, kind=Kind.DONE, stage=stage.name)],
            given_up=given_up,
        )
        assert admitted is not None, f"item '{item}' of queue '{stage.subscribes}' was done by someone else"
        del self._pending[stage.subscribes, item]
        self._emit(Kind.DONE, stage.name, item)
        for message, entry in zip(messages, outputs, strict=True):
            self._enter(entry, stage, message)
        for entry in admitted:
            self._enter(entry)
            self._to_admit.send_nowait(entry)
        for entry in outputs:
            if not entry.terminal:
                with self._stopping.until_set():
                    await self._publish(entry)

    def _enter(self, entry: Entry, stage: Stage | None = None, message: Message | None = None) -> None:
        """Take note of an entry that is in the store: it waits for its stage, or has come to its end."""
        if entry.terminal:
            name, reason = stage.name if stage else "", message.reason if isinstance(message, Rejected) else ""
            self._emit(Kind.SETTLED, name, entry.item, queue=entry.queue, detail=reason)
        else:
            self._pending[entry.queue, entry.item] = entry.attempts
            self._emit(Kind.QUEUED, self._routes.by_queue[entry.queue].name, entry.item)

    async def _publish(self, entry: Entry) -> None:
        await self._bus.publish(entry.queue, entry.body, key=f"{entry.queue}/{entry.item}")

    async def _pulse(self) -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(PULSE_S)
            lag_s = time.monotonic() - before - PULSE_S
            self.lag.add(lag_s)
            if lag_s > LAG_ALARM_S:
                self._emit(Kind.LAG, detail=f"{lag_s:.1f} s")
            for stall in self._watchdog.stalls():
                detail = f"has not moved for {stall.for_s:.0f} s; {stall.waits_for}"
                self._emit(Kind.STALLED, stall.stage, stall.item, detail=detail)
            await self._extend_leases()

    async def _extend_leases(self) -> None:
        now = time.monotonic()
        for work in list(self._working.values()):
            if now - work.extended > LEASE_S / 3:
                work.extended = now
                await work.delivery.extend()

    async def _until_unpaused(self) -> None:
        with self._stopping.until_set():
            if self._paused.is_set:
                await self._unpaused.wait()

    def _emit(self, kind: Kind, stage: str = "", item: str = "", *, queue: str = "", detail: str = "") -> None:
        event = RunEvent(
            kind=kind, run=self._run_id, at=time.time(), stage=stage, item=item, queue=queue, detail=detail
        )
        self._on_event(event)


def _pause(backoff: Backoff, failed: int) -> float:
    """Full jitter under an exponential ceiling."""
    return random.uniform(0.0, min(backoff.ceiling_s, backoff.first_s * 2 ** (failed - 1)))
