"""The jobs of a daemon: one job's trouble is its own, and no two of them are at one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from runtime.daemon import jobs as jobs_module
from runtime.daemon.jobs import JobRequest, Jobs
from runtime.daemon.kind import JobKind, JobPlace, JobWork
from runtime.daemon.records import JobRecords
from runtime.errors import UserError
from runtime.limits import Limits
from runtime.requeue import find_letter
from runtime.routes import Routes
from runtime.settings import load_settings
from runtime.store import Store
from sandbox.errors import EngineFault
from sandbox.spec import SandboxRecord
from tests.runtime.daemon.loom_jobs import STAGES, Log


class DeafEngine:
    """An engine that cannot say what it holds."""

    name = "docker"

    async def inventory(self) -> list[SandboxRecord]:
        raise EngineFault("docker", "list", "no answer")


class Waiting:
    """A kind whose jobs wait for a word. Their stages do nothing but name the messages of a run."""

    def __init__(self, tmp_path: Path) -> None:
        self.begun, self.release = anyio.Semaphore(0), defaultdict[str, anyio.Event](anyio.Event)
        self.checked: list[str] = []
        self.found: list[list[str]] = []
        """What was pending each time that a job began."""
        self.kind = JobKind(
            name="wait", stages=STAGES, check=lambda _, options: self.checked.append(options["out"]), run=self._run,
            place=lambda _, options: JobPlace(
                run_id=options["out"], store=tmp_path / options["out"] / "s.db", out=tmp_path / options["out"]
            ),
        )  # fmt: skip

    async def _run(self, work: JobWork) -> dict[str, Any]:
        place = self.kind.place(work.settings, work.options)
        async with Store(place.store) as store:
            self.found.append([entry.item for entry in await store.pending(place.run_id)])
        self.begun.release()
        await self.release[place.run_id].wait()
        return {"state": "finished"}

    async def give_up(self, out: str, *items: str) -> None:
        """A run of which nothing but dead letters is left."""
        place, routes = self.kind.place(None, {"out": out}), Routes(STAGES)
        entries = [routes.admit(Log(item=item, run_id=out, number=1)) for item in items]
        async with Store(place.store) as store:
            await store.open_run(out, command="wait", settings="{}")
            await store.start(out, entries)
            for entry in entries:
                done = (entry.queue, entry.item)
                await store.commit(out, done=done, outputs=[], settle=lambda _: [], given_up="the plane is blunt")


def jobs_of(tmp_path: Path, *, at_once: int = 2) -> Jobs:
    engine: Any = DeafEngine()
    return Jobs(
        load_settings(sets=[f"paths.state={tmp_path}", f"daemon.jobs={at_once}"]), JobRecords(tmp_path / "jobs"),
        engine=engine, limits=Limits({}), spread=lambda kind, *_: kind.stages, listen=lambda _: None,
        on_call=lambda _: None,
    )  # fmt: skip


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    waiting = Waiting(tmp_path)
    monkeypatch.setattr(jobs_module, "job_kinds", lambda: {"wait": waiting.kind})
    monkeypatch.setattr(jobs_module, "job_kind", lambda _: waiting.kind)
    return waiting


@asynccontextmanager
async def at_work(jobs: Jobs, waiting: Waiting) -> AsyncIterator[None]:
    """Work jobs off within the block; what is then in work ends."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(jobs.run)
            yield
            jobs.drain()
            for job in jobs.all():
                waiting.release[job.run_id].set()


def submit(jobs: Jobs, out: str) -> str:
    return jobs.submit(JobRequest(kind="wait", options={"out": out})).job


async def end(jobs: Jobs, name: str) -> str:
    """The state that a job in work ends in."""
    async for _ in jobs.live[name].log.follow():
        pass
    return jobs.get(name).state


async def test_a_cancelled_job_whose_sandboxes_cannot_be_looked_for_stops_no_other(tmp_path: Path, waiting: Waiting):
    jobs = jobs_of(tmp_path)
    async with at_work(jobs, waiting):
        one, other = submit(jobs, "one"), submit(jobs, "other")
        for _ in range(2):
            await waiting.begun.acquire()
        jobs.cancel(one)
        assert await end(jobs, one) == "cancelled"
        assert jobs.get(one).detail == "its sandboxes may still be there: docker: list failed: no answer"
        assert jobs.get(other).state == "running"
    assert jobs.get(other).state == "finished"


async def test_a_job_does_not_go_on_while_another_one_is_at_its_run(tmp_path: Path, waiting: Waiting):
    await waiting.give_up("out", "000")
    jobs = jobs_of(tmp_path)
    async with at_work(jobs, waiting):
        first = submit(jobs, "out")
        await waiting.begun.acquire()
        jobs.cancel(first)
        assert await end(jobs, first) == "cancelled"
        second = submit(jobs, "out")
        for _ in range(2):  # it waits for its turn, then it is in work
            with pytest.raises(UserError, match=f"job {second} writes there"):
                jobs.resume(first)
            with pytest.raises(UserError, match=f"job {second} writes there"):
                await jobs.requeue(first, "000")
            await anyio.wait_all_tasks_blocked()
        assert jobs.get(first).state == "cancelled"
    assert waiting.found == [[], []]


async def test_a_submission_for_a_run_in_work_is_refused_before_it_is_checked(tmp_path: Path, waiting: Waiting):
    jobs = jobs_of(tmp_path)
    async with at_work(jobs, waiting):
        first = submit(jobs, "out")
        await waiting.begun.acquire()
        with pytest.raises(UserError, match=f"job {first} writes there"):
            submit(jobs, "out")
    assert waiting.checked == ["out"]


async def test_letters_of_a_job_that_is_over_are_put_back_at_once_and_it_goes_on_with_all_of_them(
    tmp_path: Path, waiting: Waiting
):
    await waiting.give_up("out", "000", "001")
    waiting.release["out"].set()
    jobs, fresh = jobs_of(tmp_path), []

    async def requeue(item: str) -> None:
        fresh.append(await jobs.requeue(name, item))

    async with at_work(jobs, waiting):
        name = submit(jobs, "out")
        await waiting.begun.acquire()
        assert await end(jobs, name) == "finished"
        async with anyio.create_task_group() as both:
            both.start_soon(requeue, "000")
            both.start_soon(requeue, "001")
        await waiting.begun.acquire()
        assert await end(jobs, name) == "finished"
    assert sorted(fresh) == ["000-r1", "001-r1"]
    assert [sorted(found) for found in waiting.found] == [[], ["000-r1", "001-r1"]]


async def test_a_letter_of_a_job_that_waits_for_its_turn_is_there_when_it_comes(tmp_path: Path, waiting: Waiting):
    await waiting.give_up("out", "000", "001")
    waiting.release["out"].set()
    jobs = jobs_of(tmp_path, at_once=1)
    async with at_work(jobs, waiting):
        name = submit(jobs, "out")
        await waiting.begun.acquire()
        assert await end(jobs, name) == "finished"
        submit(jobs, "other")
        await waiting.begun.acquire()
        assert await jobs.requeue(name, "000") == "000-r1"
        assert jobs.get(name).state == "queued"
        assert await jobs.requeue(name, "001") == "001-r1"
        with pytest.raises(UserError, match="no dead letter '001'"):
            await jobs.requeue(name, "001")
        assert jobs.get(name).state == "queued"
        waiting.release["other"].set()
        await waiting.begun.acquire()
    assert waiting.found == [[], [], ["000-r1", "001-r1"]]


async def test_a_job_that_is_being_set_up_says_so_to_who_wants_a_letter_back(tmp_path: Path, waiting: Waiting):
    jobs = jobs_of(tmp_path)
    async with at_work(jobs, waiting):
        name = submit(jobs, "out")
        await waiting.begun.acquire()
        with pytest.raises(UserError, match="still being set up"):
            await jobs.requeue(name, "000")


async def test_nobody_begins_with_a_run_while_a_letter_is_put_into_its_store(
    tmp_path: Path, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
):
    await waiting.give_up("out", "000")
    jobs, states = jobs_of(tmp_path), []

    async def meanwhile(store: Store, run: str, item: str) -> Any:
        with pytest.raises(UserError, match="a dead letter is being put back there"):
            submit(jobs, "out")
        jobs.resume(name)
        await anyio.wait_all_tasks_blocked()
        states.append(jobs.get(name).state)
        return await find_letter(store, run, item)

    async with at_work(jobs, waiting):
        name = submit(jobs, "out")
        await waiting.begun.acquire()
        jobs.cancel(name)
        assert await end(jobs, name) == "cancelled"
        with monkeypatch.context() as patched:
            patched.setattr(jobs_module, "find_letter", meanwhile)
            assert await jobs.requeue(name, "000") == "000-r1"
        await waiting.begun.acquire()
    assert states == ["queued"]
    assert waiting.found == [[], ["000-r1"]]


@pytest.mark.parametrize("name", ["evaluate", "generate", "rollout", "synthesize", "train"])
def test_a_submission_that_names_nothing_is_told_what_is_missing(tmp_path: Path, name: str):
    with pytest.raises(UserError):
        jobs_of(tmp_path).submit(JobRequest(kind=name))
