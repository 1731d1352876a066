"""A job in a process of its own, with the test's kind of job: lent limits, steering, requeues, deaths, secrets."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from anyio.abc import SocketStream

from runtime.daemon import line
from runtime.daemon.apart import _Apart
from runtime.daemon.lent import LentLimits
from runtime.daemon.line import Give, Take
from runtime.daemon.sections import whole
from runtime.settings import Settings
from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import Daemon, boards, end_of, job_file, process_of, submit, until


async def test_a_place_is_asked_for_held_and_given_back():
    said = []
    limits = LentLimits({"run": 1}, said.append)
    async with anyio.create_task_group() as group:

        async def work() -> None:
            async with limits.take("run", item="a"):
                said.append("holding")

        group.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        assert said == [Take(claim=0, limit="run", item="a")]
        assert [claim.state for claim in limits.of("a")] == ["waiting"]
        limits.granted(0)
    assert said[1:] == ["holding", Give(claim=0)]
    assert limits.of("a") == []


async def test_a_wait_that_is_cancelled_is_taken_back_and_a_late_yes_changes_nothing():
    said = []
    limits = LentLimits({"run": 1}, said.append)
    with anyio.move_on_after(0):
        async with limits.take("run", item="a"):
            raise AssertionError("nobody said yes")
    assert said == [Take(claim=0, limit="run", item="a"), Give(claim=0)]
    limits.granted(0)


async def test_an_unknown_limit_is_an_error_here_and_nothing_is_asked_for():
    said = []
    with pytest.raises(KeyError):
        async with LentLimits({"run": 1}, said.append).take("fly", item="a"):
            pass
    assert said == []


async def both_ends() -> tuple[SocketStream, SocketStream]:
    ours, theirs = socket.socketpair()
    return await SocketStream.from_socket(ours), await SocketStream.from_socket(theirs)


def apart(tmp_path: Path, **more: object) -> _Apart:
    work = SimpleNamespace(announce=lambda _: None, on_event=lambda _: None)
    return _Apart("shed", work, SimpleNamespace(notes_directory=tmp_path), **more)


async def test_two_who_put_back_one_letter_have_one_answer(tmp_path):
    job, (ours, theirs) = apart(tmp_path), await both_ends()
    fresh, announced = [], anyio.Event()
    job._work.announce = lambda _: announced.set()

    async def requeue() -> None:
        fresh.append(await job.requeue("000"))

    with anyio.fail_after(10):
        async with ours, theirs, job._to_say, job._sayings, anyio.create_task_group() as group:
            group.start_soon(job._converse, ours)
            words = line.heard(theirs)
            await line.say(theirs, line.Announced(steered=True))
            await announced.wait()
            group.start_soon(requeue)
            group.start_soon(requeue)
            assert await anext(words) == line.Requeue(item="000")
            await line.say(theirs, line.Requeued(item="000", fresh="000-r1"))
            await line.say(theirs, line.Result(result={}))
    assert fresh == ["000-r1", "000-r1"]
    assert await job.requeue("000") is None


async def test_the_next_process_of_a_paused_job_is_paused_when_it_begins(tmp_path):
    job, (ours, theirs) = apart(tmp_path, paused=True), await both_ends()
    with anyio.fail_after(10):
        async with ours, theirs, job._to_say, job._sayings, anyio.create_task_group() as group:
            group.start_soon(job._converse, ours)
            await line.say(theirs, line.Announced(steered=True))
            assert await anext(line.heard(theirs)) == line.Pause(on=True)
            await line.say(theirs, line.Result(result={}))


def test_every_secret_is_handed_to_the_process():
    settings = Settings(chat={"api_key": "author's"}, band={"api_key": "policy's"})
    handed = whole(settings, engine="namespace")
    assert (handed["chat"]["api_key"], handed["band"]["api_key"]) == ("author's", "policy's")


@pytest.fixture
def engine() -> None:
    need_namespaces()
    base_environment()


def notes_of(state: Path) -> Path:
    """Where the only run of this kind keeps its store and its logs."""
    return next((state / "shop").iterdir())


@pytest.mark.namespace
async def test_it_is_paused_explained_requeued_and_goes_on_when_its_process_is_killed(tmp_path, engine):
    mended = tmp_path / "mended"
    with anyio.fail_after(120), Daemon(tmp_path) as daemon:
        client = daemon.client
        job = await submit(
            client, tmp_path / "out", kind="shed", count=60, pace_s=0.1, broken=["000"], mended=str(mended)
        )
        await until(client, job, "settled", item="000")
        assert (await client.post("jobs", job, "pause"))["paused"]
        assert (await client.get("explain", f"{job}/059"))["items"][0]["place"] == "waits for stage 'saw'"
        mended.touch()
        assert (await client.post("jobs", job, "items", "000", "requeue"))["item"] == "000-r1"
        assert not (await client.post("jobs", job, "unpause"))["paused"]
        await until(client, job, "done", stage="plane", times=4)
        os.kill(process_of(notes_of(daemon.state)), signal.SIGKILL)
        end = await end_of(client, job)
    assert end["state"] == "finished", end["detail"]
    assert end["result"]["boards"] == [["000-r1", 0], *boards(60)[1:]]


@pytest.mark.namespace
async def test_it_ends_with_its_daemon_and_goes_on_with_the_next_and_a_cancel_leaves_nothing(tmp_path, engine):
    with anyio.fail_after(120):
        with Daemon(tmp_path) as daemon:
            job = await submit(daemon.client, tmp_path / "out", kind="shed", count=500, pace_s=0.05, child="yes")
            await until(daemon.client, job, "done")
            first = process_of(notes_of(daemon.state))
            daemon.stop(signal.SIGKILL)
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "done")
            second = process_of(notes_of(daemon.state))
            assert has_ended(first)
            assert daemon.stop(signal.SIGTERM) == 0
        assert job_file(daemon.state, job)["state"] == "running"
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "done")
            third = process_of(notes_of(daemon.state))
            await daemon.client.post("jobs", job, "cancel")
            assert (await end_of(daemon.client, job))["state"] == "cancelled"
            assert all(map(has_ended, (second, third)))
            assert len(children(daemon.state)) == 3
            assert all(map(has_ended, children(daemon.state)))


@pytest.mark.namespace
async def test_what_is_told_while_its_process_is_started_again_is_done(tmp_path, engine):
    with anyio.fail_after(120), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", kind="shed", count=500, pace_s=0.05)
        await until(daemon.client, job, "done")
        os.kill(process_of(notes_of(daemon.state)), signal.SIGKILL)
        await until(daemon.client, job, "said")
        await daemon.client.post("jobs", job, "drain")
        end = await end_of(daemon.client, job)
    assert (end["state"], end["result"]["reason"]) == ("drained", "asked to")


@pytest.mark.namespace
async def test_one_that_dies_each_time_fails_with_the_end_of_its_output(tmp_path, engine):
    with anyio.fail_after(120), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", kind="shed", count=5, child="yes", dies="at once")
        end = await end_of(daemon.client, job)
    assert end["state"] == "failed"
    assert "ended by signal 6" in end["detail"]
    assert "the shed collapses" in end["detail"]
    assert len(children(daemon.state)) == 3
    assert all(map(has_ended, children(daemon.state)))


def children(state: Path) -> list[int]:
    """What the processes of the only run have started."""
    log = (notes_of(state) / "process.log").read_text()
    return [int(said.split()[-1]) for said in log.splitlines() if said.startswith("a child:")]


def has_ended(process: int) -> bool:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    return bool(ended)
