"""Following a job: late, slowly, to its end; and the numbers that are written while it runs."""

from __future__ import annotations

import json

import anyio

from runtime.daemon.live import EventLog
from runtime.events import Kind, RunEvent
from runtime.metrics_file import metrics_lines
from runtime.progress import Tally


def event(number: int, kind: Kind = Kind.QUEUED) -> RunEvent:
    return RunEvent(kind=kind, run="r", at=float(number), stage="saw", item=str(number))


async def test_who_comes_late_sees_what_is_kept_and_what_follows():
    log, seen = EventLog(), []
    log.add(event(0))

    async def follow() -> None:
        async for missed, one in log.follow():
            seen.append((missed, one and one.item))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            log.add(event(1))
            await anyio.wait_all_tasks_blocked()
            log.close()
    assert seen == [(0, "0"), (0, "1")]


async def test_who_is_too_slow_is_told_how_many_events_passed_by():
    log = EventLog(kept=3)
    followed = log.follow()
    log.add(event(0))
    assert await anext(followed) == (0, event(0))
    for number in range(1, 8):
        log.add(event(number))
    log.close()
    assert [(missed, one.item) async for missed, one in followed] == [(4, "5"), (0, "6"), (0, "7")]


async def test_silence_is_broken_by_a_sign_of_life():
    log = EventLog()
    with anyio.fail_after(10):
        assert await anext(log.follow(beat_s=0.001)) == (0, None)


async def test_numbers_are_written_at_the_beginning_and_at_the_end(tmp_path):
    tally = Tally(["saw"])
    path = tmp_path / "run" / "metrics.jsonl"
    async with metrics_lines(path, tally):
        for kind in (Kind.QUEUED, Kind.STARTED, Kind.DONE):
            tally(event(1, kind))
    first, last = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["saw.passed"], last["saw.passed"]) == (0, 1)
    assert last["at"] >= first["at"]
