"""The daemon's own part, in this process: what its pages raise is in its log, and its parts hear of each other."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from runtime.daemon import jobs as jobs_module
from runtime.daemon import server
from runtime.daemon.client import DaemonClient, DaemonError, require_client
from runtime.daemon.kind import JobWork
from runtime.daemon.place import sole_daemon
from runtime.daemon.spread import Here
from runtime.daemon.state import Reporter
from runtime.events import Kind, RunEvent
from runtime.logs import logging_to
from runtime.settings import load_settings
from tests.runtime.daemon.loom_jobs import JOB
from tests.runtime.daemon.served import end_of, submit
from tests.runtime.daemon.test_jobs import DeafEngine


@asynccontextmanager
async def daemon(state: Path) -> AsyncIterator[DaemonClient]:
    """One that is drained at the end of the block."""
    engine: Any = DeafEngine()
    settings = load_settings(sets=[f"paths.state={state}", "daemon.port=0"])
    drains, at_work = [], anyio.Event()

    def on_drain(drain: Callable[[], None]) -> None:
        drains.append(drain)
        at_work.set()

    async def serve() -> None:
        await server._serve(settings, engine, say=lambda _: None, on_drain=on_drain)

    with anyio.fail_after(20), sole_daemon(state):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await at_work.wait()
            yield require_client(state)
            drains[0]()


async def test_a_bug_behind_a_page_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def state(_: Reporter) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Reporter, "state", state)
    with logging_to(tmp_path / "log.jsonl"):
        async with daemon(tmp_path) as client:
            with pytest.raises(DaemonError, match="HTTP 500"):
                await client.get("state")
    (line,) = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert "KeyError: 'a bug'" in line["exception"]


async def test_who_sends_work_abroad_hears_of_a_run_that_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    heard: list[RunEvent] = []
    draining = RunEvent(kind=Kind.DRAINING, run="r", at=time.time())

    @asynccontextmanager
    async def open_spread(*_: object) -> AsyncIterator[Here]:
        spread = Here()
        monkeypatch.setattr(spread, "listen", heard.append)
        yield spread

    async def run(work: JobWork) -> dict[str, Any]:
        work.on_event(draining)
        return {"state": "finished"}

    monkeypatch.setattr(server, "open_spread", open_spread)
    kind = replace(JOB, run=run)
    monkeypatch.setattr(jobs_module, "job_kinds", lambda: {"shop": kind})
    monkeypatch.setattr(jobs_module, "job_kind", lambda _: kind)
    async with daemon(tmp_path) as client:
        job = await submit(client, tmp_path / "out", count=1)
        assert (await end_of(client, job))["state"] == "finished"
    assert heard == [draining]
