"""The jobs of a daemon whose engine fails: one job's trouble is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from runtime.daemon import jobs as jobs_module
from runtime.daemon.jobs import JobRequest, Jobs
from runtime.daemon.kind import JobKind, JobPlace, JobWork
from runtime.daemon.records import JobRecords
from runtime.limits import Limits
from runtime.settings import load_settings
from sandbox.errors import EngineFault
from sandbox.spec import SandboxRecord


class DeafEngine:
    """An engine that cannot say what it holds."""

    async def inventory(self) -> list[SandboxRecord]:
        raise EngineFault("docker", "list", "no answer")


class Waiting:
    """A kind whose jobs wait for a word."""

    def __init__(self, tmp_path: Path) -> None:
        self.begun, self.release = anyio.Semaphore(0), anyio.Event()
        self.kind = JobKind(
            name="wait", stages=(), check=lambda *_: None, run=self._run,
            place=lambda _, options: JobPlace(
                run_id=options["out"], store=tmp_path / options["out"] / "s.db", out=tmp_path / options["out"]
            ),
        )  # fmt: skip

    async def _run(self, work: JobWork) -> dict[str, Any]:
        self.begun.release()
        await self.release.wait()
        return {"state": "finished"}


async def test_a_cancelled_job_whose_sandboxes_cannot_be_looked_for_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waiting, settings = Waiting(tmp_path), load_settings(sets=[f"paths.state={tmp_path}", "daemon.jobs=2"])
    monkeypatch.setattr(jobs_module, "job_kinds", lambda: {"wait": waiting.kind})
    monkeypatch.setattr(jobs_module, "job_kind", lambda _: waiting.kind)
    engine: Any = DeafEngine()
    jobs = Jobs(
        settings, JobRecords(tmp_path / "jobs"), engine=engine, limits=Limits({}),
        spread=lambda kind, *_: kind.stages, listen=lambda _: None, on_call=lambda _: None,
    )  # fmt: skip
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(jobs.run)
            one, other = (jobs.submit(JobRequest(kind="wait", options={"out": out})).job for out in ("one", "other"))
            for _ in range(2):
                await waiting.begun.acquire()
            jobs.cancel(one)
            async for _ in jobs.live[one].log.follow():
                pass
            assert jobs.get(one).state == "cancelled"
            assert jobs.get(one).detail == "its sandboxes may still be there: docker: list failed: no answer"
            assert jobs.get(other).state == "running"
            jobs.drain()
            waiting.release.set()
    assert jobs.get(other).state == "finished"
