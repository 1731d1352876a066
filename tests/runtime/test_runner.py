"""The runner: every admitted item ends in exactly one terminal message, whatever happens on the way."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from runtime.bus import MemoryBus, QueueOptions
from runtime.bus.nats import NatsBus
from runtime.errors import (
    BudgetExhausted,
    ChatRejected,
    ChatUnavailable,
    ContextOverflow,
    MachineRefused,
    StoreError,
    UserError,
    WorkUnreadable,
)
from runtime.events import Kind, RunEvent
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.source import Once
from runtime.stage import Message, Rejected, Stage
from runtime.store import Store
from sandbox.errors import EngineFault
from tests.runtime.pipeline import QUICK, RUN, Cut, Packed, Raw, Refill, raw, stages

ROOT = Path(__file__).parents[2]


@dataclass
class World:
    """A store and a bus, and what the runner told."""

    store: Store
    bus: MemoryBus
    told: list[RunEvent] = field(default_factory=list)

    def runner(self, pipeline: Sequence[Stage], source: object, **options: object) -> Runner:
        return Runner(
            stages=pipeline, bus=self.bus, store=self.store, run_id=RUN, source=source, on_event=self.told.append,
            **{"context": None, **options},
        )  # fmt: skip

    async def ends(self, pipeline: Sequence[Stage]) -> dict[str, Message]:
        routes = Routes(pipeline)
        entries = await self.store.terminal(RUN)
        assert len({e.item for e in entries}) == len(entries)
        return {entry.item: routes.decode(entry.body) for entry in entries}

    def details(self, kind: Kind) -> list[str]:
        return [event.detail for event in self.told if event.kind is kind]


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    async with Store(path / "s.db") as store, MemoryBus() as bus:
        await store.open_run(RUN, command="test", settings="{}")
        with anyio.fail_after(90):
            yield World(store, bus)


def one_stage(handler: object, **changes: object) -> list[Stage]:
    stage = Stage(
        name="cut", subscribes="raw", takes=Raw, publishes={Cut: "cut"}, handler=handler, backoff=QUICK, attempts=3
    )
    return [replace(stage, **changes)]


def cut(message: Raw) -> Cut:
    return Cut(item=message.item, run_id=RUN, number=message.number)


async def test_every_item_ends_once_and_rejections_are_refilled(tmp_path: Path):
    async with world(tmp_path) as w:
        source, pipeline = Refill(12), stages()
        result = await w.runner(pipeline, source).run()
        ends = await w.ends(pipeline)
        packed = [m.number for m in ends.values() if isinstance(m, Packed)]
        assert sorted(packed) == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]
        assert (result.state, result.admitted, result.terminal, result.pending) == ("finished", 15, 15, 0)
        assert sorted(source.heard) == sorted(ends)
        assert Counter(e.kind for e in w.told if e.kind is Kind.SETTLED or e.kind is Kind.RETRY) == {
            Kind.SETTLED: 15,
            Kind.RETRY: 15,
        }
        assert [run.state for run in await w.store.runs()] == ["finished"]


@pytest.mark.nats
async def test_a_run_over_nats_that_is_cancelled_is_finished_by_the_next(tmp_path: Path, nats_url: str):
    """What the first runner left in the streams, the second one does not do twice."""
    for cancel_after in (25, 10_000):
        async with world(tmp_path) as w, NatsBus(nats_url, prefix=tmp_path.name[:20].replace("_", "-")) as bus:
            w.bus, pipeline = bus, stages()
            with anyio.CancelScope() as scope:

                def listen(event: RunEvent, w: World = w, scope=scope, cancel_after=cancel_after) -> None:
                    w.told.append(event)
                    if len(w.told) > cancel_after:
                        scope.cancel()

                runner = w.runner(pipeline, Refill(12))
                runner._on_event = listen
                await runner.run()
    async with world(tmp_path) as w:
        packed = [m.number for m in (await w.ends(pipeline)).values() if isinstance(m, Packed)]
        assert sorted(packed) == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]
        assert (await w.store.tally(RUN)).pending == 0


async def test_a_finished_run_started_again_does_nothing(tmp_path: Path):
    async with world(tmp_path) as w:
        await w.runner(stages(), Refill(3)).run()
        told = len(w.told)
        result = await w.runner(stages(), Refill(3)).run()
        assert (result.state, result.terminal, len(w.told)) == ("finished", 4, told)


async def test_a_run_without_items_finishes(tmp_path: Path):
    async with world(tmp_path) as w:
        assert (await w.runner(stages(), Once([])).run()).state == "finished"


async def test_infrastructure_that_stays_away_ends_as_gave_up(tmp_path: Path):
    async def broken(message: Raw, _: object) -> list[Message]:
        raise EngineFault("docker", "create", "no answer")

    async with world(tmp_path) as w:
        pipeline = one_stage(broken)
        await w.runner(pipeline, Once([raw(1)])).run()
        (end,) = (await w.ends(pipeline)).values()
        assert isinstance(end, Rejected)
        assert (end.stage, end.reason) == ("cut", "gave_up: EngineFault: docker: create failed: no answer")
        assert len(w.details(Kind.RETRY)) == 3
        assert [letter.key for letter in await w.bus.dead_letters("raw")] == ["raw/001"]


@pytest.mark.parametrize(
    "fault", [ChatUnavailable("http://model", "refused"), WorkUnreadable("1.0", "no such outcome")]
)
async def test_what_no_item_would_fare_better_with_drains_the_run_and_costs_none(tmp_path: Path, fault: Exception):
    async def unanswered(_message: Raw, _: object) -> list[Message]:
        raise fault

    async def fine(message: Raw, _: object) -> list[Message]:
        return [cut(message)]

    async with world(tmp_path) as w:
        result = await w.runner(one_stage(unanswered), Once([raw(n) for n in range(20)])).run()
        assert (result.state, result.terminal, result.pending) == ("drained", 0, 20)
        assert str(fault) in result.reason
    async with world(tmp_path) as w:
        assert (await w.runner(one_stage(fine), Once([raw(n) for n in range(20)])).run()).terminal == 20


async def test_an_item_that_an_endpoint_never_answers_is_given_up_by_a_resumed_run(tmp_path: Path):
    async def unanswered(message: Raw, _: object) -> list[Message]:
        if message.number == 1:
            raise ChatUnavailable("http://model", "HTTP 500")
        return [cut(message)]

    pipeline = one_stage(unanswered)
    async with world(tmp_path) as w:
        assert (await w.runner(pipeline, Once([raw(1), raw(2)])).run()).state == "drained"
    async with world(tmp_path) as w:
        await w.runner(pipeline, Once([raw(1), raw(2)])).run()
        ends = await w.ends(pipeline)
        assert (ends["001"].reason, type(ends["002"])) == ("gave_up: ChatUnavailable: http://model: HTTP 500", Cut)


async def test_a_bug_is_journalled_with_its_traceback_and_ends_only_its_item(tmp_path: Path):
    async def buggy(message: Raw, _: object) -> list[Message]:
        if message.number == 1:
            return [[].pop()]
        return [cut(message)]

    async with world(tmp_path) as w:
        pipeline = one_stage(buggy)
        await w.runner(pipeline, Once([raw(1), raw(2)])).run()
        ends = await w.ends(pipeline)
        assert (ends["001"].reason, type(ends["002"])) == ("fault", Cut)
        notes = [n for n in await w.store.journal(RUN, item="001") if n.kind == "fault"]
        assert len(notes) == 3
        assert "IndexError: pop from empty list" in notes[0].detail
        assert "in buggy" in notes[0].detail


async def test_a_result_that_cannot_be_written_is_a_fault_of_its_item_alone(tmp_path: Path):
    async def half(message: Raw, _: object) -> list[Message]:
        if message.number == 1:
            return [Rejected(item=message.item, run_id=RUN, stage="cut", reason="ugly", detail="a\ud83d")]
        return [cut(message)]

    async with world(tmp_path) as w:
        pipeline = one_stage(half)
        await w.runner(pipeline, Once([raw(1), raw(2)])).run()
        ends = await w.ends(pipeline)
        assert (ends["001"].reason, type(ends["002"])) == ("fault", Cut)
        assert len(w.details(Kind.FAULT)) == 3
        assert "UnencodableMessage: a Rejected cannot be written" in w.details(Kind.FAULT)[0]


async def test_a_fault_whose_words_cannot_be_written_is_still_told(tmp_path: Path):
    async def broken(message: Raw, _: object) -> list[Message]:
        raise EngineFault("docker", "exec", "no a\ud83d")

    async with world(tmp_path) as w:
        pipeline = one_stage(broken)
        await w.runner(pipeline, Once([raw(1)])).run()
        (end,) = (await w.ends(pipeline)).values()
        assert end.reason.endswith("no a?")


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "returned 0 messages for item '001'"),
        ([Packed(item="001", run_id=RUN, number=1)], "gave a Packed, which no declaration allows"),
        ([Cut(item="001", run_id=RUN, number=1), Cut(item="002", run_id=RUN, number=1)], "item '002' cannot go to"),
    ],
)
async def test_a_handler_that_loses_or_misplaces_an_item_is_a_fault(tmp_path: Path, messages, complaint):
    async def wrong(message: Raw, _: object) -> list[Message]:
        return messages if message.number == 1 else [cut(message)]

    async with world(tmp_path) as w:
        pipeline = one_stage(wrong, attempts=1)
        await w.runner(pipeline, Once([raw(1), raw(2)])).run()
        ends = await w.ends(pipeline)
        assert (ends["001"].reason, type(ends["002"])) == ("fault", Cut)
        assert complaint in w.details(Kind.FAULT)[0]


async def test_a_handler_may_add_items_of_its_own(tmp_path: Path):
    async def split(message: Raw, _: object) -> list[Message]:
        return [cut(message), Cut(item=f"{message.item}-b", run_id=RUN, number=0)]

    async with world(tmp_path) as w:
        source, pipeline = Refill(2), one_stage(split)
        result = await w.runner(pipeline, source).run()
        assert (result.admitted, result.terminal) == (4, 4)
        assert sorted(source.heard) == ["000", "000-b", "001", "001-b"]


async def test_what_misses_its_deadline_is_tried_again_and_then_given_up(tmp_path: Path):
    tried: list[str] = []

    async def endless(message: Raw, _: object) -> list[Message]:
        tried.append(message.item)
        await anyio.sleep_forever()
        return []

    async with world(tmp_path) as w:
        pipeline = one_stage(endless, deadline_s=0.01)
        await w.runner(pipeline, Once([raw(1)])).run()
        (end,) = (await w.ends(pipeline)).values()
        assert (end.reason, len(tried)) == ("gave_up: not done within 0.01 s", 3)


async def test_a_prompt_that_does_not_fit_is_the_items_own_end(tmp_path: Path):
    async def overflow(message: Raw, _: object) -> list[Message]:
        async with anyio.create_task_group():
            raise ContextOverflow("http://model", "17000 tokens do not fit")

    async with world(tmp_path) as w:
        pipeline = one_stage(overflow)
        await w.runner(pipeline, Once([raw(1)])).run()
        (end,) = (await w.ends(pipeline)).values()
        assert (end.reason, w.details(Kind.RETRY), w.details(Kind.FAULT)) == ("context_length", [], [])


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (UserError("model", "unknown", "Choose one"), UserError, "unknown"),
        (ChatRejected("http://model", "bad key", status=401), ChatRejected, "bad key"),
        (OSError(28, "No space left on device", "/out/task"), MachineRefused, "/out/task: No space"),
    ],
)
async def test_what_only_the_user_can_mend_ends_the_run_and_loses_nothing(
    tmp_path: Path, error: Exception, raised: type[Exception], message: str
):
    async def refused(_message: Raw, _: object) -> list[Message]:
        raise error

    async def fine(message: Raw, _: object) -> list[Message]:
        return [cut(message)]

    async with world(tmp_path) as w:
        with pytest.raises(raised, match=message):
            await w.runner(one_stage(refused), Once([raw(n) for n in range(20)])).run()
        assert (await w.store.tally(RUN)).pending == 20
    async with world(tmp_path) as w:
        assert (await w.runner(one_stage(fine), Once([raw(n) for n in range(20)])).run()).terminal == 20


async def test_a_bug_of_the_source_ends_the_run(tmp_path: Path):
    class Broken(Refill):
        def settled(self, message: Message) -> Sequence[Message]:
            raise ZeroDivisionError

    async with world(tmp_path) as w:
        with pytest.raises(ZeroDivisionError):
            await w.runner(stages(), Broken(3)).run()


async def test_a_drain_finishes_what_is_in_work_and_a_later_run_the_rest(tmp_path: Path):
    started, release = anyio.Event(), anyio.Event()

    async def gated(message: Raw, _: object) -> list[Message]:
        started.set()
        await release.wait()
        return [cut(message)]

    async with world(tmp_path) as w:
        runner = w.runner(one_stage(gated, slots=2), Once([raw(n) for n in range(10)]))

        async def drain() -> None:
            await started.wait()
            runner.drain()
            release.set()

        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            result = await runner.run()
        assert (result.state, result.reason) == ("drained", "asked to")
        assert 1 <= result.terminal <= 2
        assert result.terminal + result.pending == result.admitted == 10
    async with world(tmp_path) as w:
        result = await w.runner(one_stage(gated), Once([raw(n) for n in range(10)])).run()
        assert (result.state, result.terminal) == ("finished", 10)


async def test_a_drain_frees_workers_that_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second stage is at its gate and its queue is full: the first one's workers wait to publish."""
    monkeypatch.setattr("runtime.runner.ROOM", 1)
    release, blocked = anyio.Event(), anyio.Event()
    done: list[str] = []

    async def quick(message: Raw, _: object) -> list[Message]:
        done.append(message.item)
        if len(done) == 3:
            blocked.set()
        return [cut(message)]

    async def gated(message: Cut, _: object) -> list[Message]:
        await release.wait()
        return [Packed(item=message.item, run_id=RUN, number=message.number)]

    pipeline = [
        *one_stage(quick, slots=3),
        Stage(name="pack", subscribes="cut", takes=Cut, publishes={Packed: "packed"}, handler=gated, slots=1),
    ]
    async with world(tmp_path) as w:
        runner = w.runner(pipeline, Once([raw(n) for n in range(6)]))

        async def drain() -> None:
            await blocked.wait()
            runner.drain()
            release.set()

        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            result = await runner.run()
        assert result.state == "drained"
    async with world(tmp_path) as w:
        assert (await w.runner(pipeline, Once([raw(n) for n in range(6)])).run()).terminal == 6


async def test_a_spent_budget_drains_the_run(tmp_path: Path):
    async def costly(message: Raw, _: object) -> list[Message]:
        if message.number == 3:
            raise BudgetExhausted("http://model", "the ceiling of 5.00 is reached")
        return [cut(message)]

    async with world(tmp_path) as w:
        result = await w.runner(one_stage(costly, slots=1), Once([raw(n) for n in range(6)])).run()
        assert (result.state, result.terminal, result.pending) == ("drained", 3, 3)
        assert "ceiling of 5.00" in result.reason


async def test_narrow_queues_and_a_refilling_source_do_not_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.runner.ROOM", 1)
    async with world(tmp_path) as w:
        assert (await w.runner(stages(), Refill(30)).run()).state == "finished"


async def test_a_cancelled_run_can_be_taken_up_again(tmp_path: Path):
    for _ in range(8):  # each time it gets a little further, or is cancelled at another await
        async with world(tmp_path) as w:
            with anyio.CancelScope() as scope:
                runner = w.runner(stages(), Refill(12))
                steps = 0

                def count(event: RunEvent, scope: anyio.CancelScope = scope) -> None:
                    nonlocal steps
                    steps += 1
                    if steps > 23:
                        scope.cancel()

                runner._on_event = count
                await runner.run()
    async with world(tmp_path) as w:
        await w.runner(stages(), Refill(12)).run()
        packed = [m.number for m in (await w.ends(stages())).values() if isinstance(m, Packed)]
        assert sorted(packed) == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]


async def test_a_late_redelivery_neither_works_twice_nor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The lease runs out while the handler works: the bus delivers again, the runner waits for the first one."""
    monkeypatch.setattr("runtime.runner.LEASE_S", 0.02)
    tried: list[str] = []

    class Telling(MemoryBus):
        again = anyio.Event()

        def consume(self, queue: str, *, slots: int):
            outer = super().consume(queue, slots=slots)

            @asynccontextmanager
            async def telling():
                async with outer as deliveries:

                    async def each():
                        async for delivery in deliveries:
                            if delivery.attempt == 2:
                                self.again.set()
                            yield delivery

                    yield each()

            return telling()

    async def slow(message: Raw, _: object) -> list[Message]:
        tried.append(message.item)
        await Telling.again.wait()
        return [cut(message)]

    async with world(tmp_path) as w, Telling() as bus:
        w.bus = bus
        result = await w.runner(one_stage(slow), Once([raw(1)])).run()
        assert (result.terminal, tried, w.details(Kind.RETRY)) == (1, ["001"], [])


async def test_leases_are_extended_while_handlers_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.runner.LEASE_S", 1.5)
    monkeypatch.setattr("runtime.runner.PULSE_S", 0.02)

    async def slow(message: Raw, bus: MemoryBus) -> list[Message]:
        """Works until a lease that nobody extends has run out: that of the message next door."""
        await bus.declare("other", QueueOptions(lease_s=2.0))
        await bus.publish("other", b"", key="a")
        async with bus.consume("other", slots=2) as deliveries:
            await anext(deliveries)
            await (await anext(deliveries)).ack()
        state = await bus.state("raw")
        return [Cut(item=message.item, run_id=RUN, number=state.leased)]

    async with world(tmp_path) as w:
        pipeline = one_stage(slow)
        await w.runner(pipeline, Once([raw(1)]), context=w.bus).run()
        (end,) = (await w.ends(pipeline)).values()
        assert (end.number, w.details(Kind.STARTED)) == (1, [""])
        assert (await w.bus.state("raw")).oldest_s == 0


async def test_the_watchdog_names_item_stage_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.runner.PULSE_S", 0.01)
    limits, stalled, told = Limits({"build": 1}), anyio.Event(), dict[str, tuple[str, str]]()

    async def building(message: Raw, _: object) -> list[Message]:
        async with limits.take("build", item=message.item):
            await stalled.wait()
        return [cut(message)]

    async with world(tmp_path) as w:
        runner = w.runner(one_stage(building), Once([raw(1), raw(2)]), limits=limits, patience_s=0.05)

        def listen(event: RunEvent) -> None:
            w.told.append(event)
            if event.kind is Kind.STALLED and not stalled.is_set():
                told[event.item] = (event.stage, event.detail)
            if {"001", "002"} <= told.keys():
                stalled.set()

        runner._on_event = listen
        await runner.run()
        assert told["001"][0] == "cut"
        assert "holding 'build'" in told["001"][1]
        assert "waiting 'build'" in told["002"][1]


async def test_an_item_that_infrastructure_fails_again_and_again_is_named_and_ends_as_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runtime.runner.PULSE_S", 0.01)
    told, tries = anyio.Event(), 0

    async def away(message: Raw, _: object) -> list[Message]:
        nonlocal tries
        tries += 1
        if tries == 3:
            await told.wait()
        raise EngineFault("docker", "create", "no answer")

    async with world(tmp_path) as w:
        runner = w.runner(one_stage(away), Once([raw(1)]), patience_s=0.05)

        def listen(event: RunEvent) -> None:
            w.told.append(event)
            if event.kind is Kind.STALLED and "2 attempts failed" in event.detail:
                told.set()

        runner._on_event = listen
        await runner.run()
        (letter,) = await w.store.dead_letters(RUN)
        assert letter.reason == "gave_up: EngineFault: docker: create failed: no answer"
        assert "the last: EngineFault: docker: create failed: no answer" in w.details(Kind.STALLED)[-1]


async def test_a_resumed_run_with_another_source_is_refused(tmp_path: Path):
    async with world(tmp_path) as w:
        await w.runner(stages(), Refill(4)).run()
        with pytest.raises(StoreError, match="recorded with another source"):
            await w.runner(stages(), Refill(9)).run()


def test_stages_with_one_queue_are_refused():
    with pytest.raises(ValueError, match="same queue"):
        Routes([*stages(), *one_stage(None, name="other")])


@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_random_points_finishes_with_the_same_ends(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.runtime.pipeline", str(tmp_path / "s.db"), "12"]
    kills = 0
    for _ in range(6):
        lines = rng.randrange(1, 60)
        child = subprocess.Popen([*command, str(lines + 10)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with child.stdout:
            for _ in range(lines):
                if not child.stdout.readline():
                    break
            child.kill()
        kills += child.wait() != 0
    assert kills
    settled = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60, cwd=ROOT)
    assert "fault" not in settled.stdout

    async def check() -> None:
        async with world(tmp_path) as w:
            ends = await w.ends(stages())
            assert sorted(m.number for m in ends.values() if isinstance(m, Packed)) == [
                1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14
            ]  # fmt: skip
            assert sorted(i for i, m in ends.items() if isinstance(m, Rejected)) == ["000", "005", "010"]
            assert (await w.store.tally(RUN)).pending == 0

    anyio.run(check)
