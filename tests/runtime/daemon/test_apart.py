"""A job in a process of its own, with the test's kind of job: lent limits, steering, requeues, deaths, secrets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from runtime.daemon.lent import LentLimits
from runtime.daemon.line import Give, Take
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
        await until(client, job, "settled", stage="plane")
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
            job = await submit(daemon.client, tmp_path / "out", kind="shed", count=500, pace_s=0.05)
            await until(daemon.client, job, "done")
            first = process_of(notes_of(daemon.state))
            daemon.stop(signal.SIGKILL)
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "done")
            second = process_of(notes_of(daemon.state))
            assert not Path(f"/proc/{first}").exists()
            assert daemon.stop(signal.SIGTERM) == 0
        assert job_file(daemon.state, job)["state"] == "running"
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "done")
            third = process_of(notes_of(daemon.state))
            await daemon.client.post("jobs", job, "cancel")
            assert (await end_of(daemon.client, job))["state"] == "cancelled"
            assert not any(Path(f"/proc/{process}").exists() for process in (second, third))


@pytest.mark.namespace
async def test_one_that_dies_each_time_fails_with_the_end_of_its_output(tmp_path, engine):
    with anyio.fail_after(120), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", kind="shed", count=5, dies="at once")
        end = await end_of(daemon.client, job)
    assert end["state"] == "failed"
    assert "ended by signal 6" in end["detail"]
    assert "the shed collapses" in end["detail"]
