"""A daemon in a process of its own: jobs, control of a live run, drains, kills, resumption."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import anyio
import pytest

from runtime.control import ctl
from runtime.errors import UserError
from runtime.options import Common
from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import Daemon, boards, end_of, job_file, submit, until

pytestmark = pytest.mark.namespace


@pytest.fixture(autouse=True)
def engine_can_be_used() -> None:
    need_namespaces()
    base_environment()


@pytest.fixture
def say(capsys, tmp_path):
    """`ctl` as a person calls it, with its JSON."""

    async def call(*arguments: str) -> object:
        capsys.readouterr()
        action, *rest = arguments
        await ctl(action, *rest, common=Common(sets=[f"paths.state={tmp_path / 'state'}"], json=True))
        return json.loads(capsys.readouterr().out)

    return call


async def test_a_job_is_carried_out_and_its_events_can_be_followed(tmp_path):
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", count=5)
        end = await end_of(daemon.client, job)
        assert (end["state"], end["result"]["boards"]) == ("finished", boards(5))
        assert daemon.stop() == 0
    assert job_file(daemon.state, job)["state"] == "finished"


async def test_what_cannot_be_run_is_refused_with_a_remedy(tmp_path):
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        with pytest.raises(UserError, match="Ask for something"):
            await submit(daemon.client, tmp_path / "out", count=0)
        with pytest.raises(UserError, match="There are evaluate"):
            await daemon.client.post("jobs", body={"kind": "weave"})
        with pytest.raises(UserError, match="the daemon's own"):
            await daemon.client.post("jobs", body={"kind": "shop", "settings": {"paths": {"state": "/"}}})
        await submit(daemon.client, tmp_path / "out", count=50, pace_s=0.2)
        with pytest.raises(UserError, match="job j1 writes there"):
            await submit(daemon.client, tmp_path / "out", count=1)


async def test_a_second_daemon_of_the_same_state_directory_is_refused(tmp_path):
    with Daemon(tmp_path), pytest.raises(AssertionError, match="another daemon works there"):
        Daemon(tmp_path)


async def test_a_live_run_is_paused_explained_and_goes_on(tmp_path, say):
    mended, held = tmp_path / "mended", ["003", "004", "005"]  # as many as have a place at the first stage
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", count=12, held=held, mended=str(mended))
        await until(daemon.client, job, "done")
        assert (await say("pause"))[0]["paused"]
        told = await say("explain", "011")
        assert told["items"][0]["place"] == "waits for stage 'saw'"
        assert (await say("ps"))["jobs"][0]["paused"]
        mended.touch()
        assert not (await say("unpause", job))[0]["paused"]
        assert (await end_of(daemon.client, job))["result"]["boards"] == boards(12)


async def test_an_item_and_a_job_can_be_cancelled(tmp_path, say):
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", count=400, pace_s=0.1)
        await until(daemon.client, job, "started")
        await say("cancel", f"{job}/399")
        with pytest.raises(UserError, match="no pending 'nobody'"):
            await say("cancel", f"{job}/nobody")
        await say("cancel", job)
        assert (await end_of(daemon.client, job))["state"] == "cancelled"
        assert (await say("ps"))["sandboxes"] == []


async def test_a_dead_letter_is_listed_and_requeued_after_its_job_has_ended(tmp_path, say):
    mended = tmp_path / "mended"
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        job = await submit(daemon.client, tmp_path / "out", count=3, broken=["001"], mended=str(mended))
        assert (await end_of(daemon.client, job))["result"]["boards"] == [["000", 0], ["002", 4]]
        letters = await say("dead-letters")
        assert [(letter["item"], letter["reason"]) for letter in letters] == [("001", "gave_up: the plane is blunt")]
        mended.touch()
        assert (await say("requeue", f"{job}/001"))["item"] == "001-r1"
        assert (await end_of(daemon.client, job))["result"]["boards"] == [["000", 0], ["001-r1", 2], ["002", 4]]
        assert await say("dead-letters") == []


async def test_a_limit_is_set_on_the_running_daemon_and_others_are_refused(tmp_path, say):
    with anyio.fail_after(60), Daemon(tmp_path):
        limits = {limit["limit"]: limit["size"] for limit in await say("set", "limits.build=7")}
        assert limits["build"] == 7
        with pytest.raises(UserError, match=r"limits\.build"):
            await say("set", "generate.count=7")
        with pytest.raises(UserError, match="no number"):
            await say("set", "limits.build=0")


async def test_sigterm_drains_and_the_next_daemon_goes_on(tmp_path):
    with anyio.fail_after(90):
        with Daemon(tmp_path) as daemon:
            job = await submit(daemon.client, tmp_path / "out", count=160, pace_s=0.05)
            await until(daemon.client, job, "done", times=4)
            assert daemon.stop(signal.SIGTERM) == 0
        assert job_file(daemon.state, job)["state"] == "running"
        with Daemon(tmp_path) as daemon:
            assert (await end_of(daemon.client, job))["result"]["boards"] == boards(160)


async def test_a_daemon_killed_at_random_moments_ends_with_the_same_items(tmp_path):
    chance, kills = random.Random(7), 0
    with anyio.fail_after(280):
        with Daemon(tmp_path) as daemon:
            job = await submit(daemon.client, tmp_path / "out", count=240, pace_s=0.03)
            await until(daemon.client, job, "started")
            daemon.stop(signal.SIGKILL)
        while True:
            with Daemon(tmp_path) as daemon:
                if kills >= 20 or (await daemon.client.get("jobs", job))["job"]["state"] == "finished":
                    end = await end_of(daemon.client, job)
                    break
                with anyio.move_on_after(chance.uniform(0.0, 0.25)):
                    await end_of(daemon.client, job)
                daemon.stop(signal.SIGKILL)
                kills += 1
    assert end["result"]["boards"] == boards(240)
    assert kills >= 5


async def test_jobs_beyond_the_limit_wait_for_their_turn(tmp_path, say):
    mended = tmp_path / "mended"
    with anyio.fail_after(60), Daemon(tmp_path, "--set", "daemon.jobs=1") as daemon:
        first = await submit(daemon.client, tmp_path / "a", count=8, held=["007"], mended=str(mended))
        second = await submit(daemon.client, tmp_path / "b", count=2)
        await until(daemon.client, first, "started")
        states = [job["job"]["state"] for job in (await say("ps"))["jobs"]]
        assert states == ["running", "queued"]
        mended.touch()
        assert (await end_of(daemon.client, second))["result"]["boards"] == boards(2)
        assert job_file(daemon.state, first)["state"] == "finished"


async def test_a_unix_socket_needs_no_token_and_is_this_users_alone(tmp_path):
    path = tmp_path / "daemon.sock"
    with anyio.fail_after(60), Daemon(tmp_path, "--socket", str(path)) as daemon:
        assert path.stat().st_mode & 0o777 == 0o600
        job = await submit(daemon.client, tmp_path / "out", count=2)
        assert (await end_of(daemon.client, job))["state"] == "finished"
    assert daemon.address == f"unix:{path}"


async def test_no_secret_reaches_the_disk(tmp_path, monkeypatch):
    canary = "canary-9c1f7d3a5b"
    monkeypatch.setenv("TERMLOOM_CHAT__API_KEY", canary)
    with anyio.fail_after(60), Daemon(tmp_path) as daemon:
        body = {"kind": "shop", "settings": {"chat": {"api_key": canary}}, "options": {"out": "/o", "count": 2}}
        job = (await daemon.client.post("jobs", body=body))["job"]
        await end_of(daemon.client, job)
        daemon.stop()
    assert [path for path in Path(tmp_path).rglob("*") if path.is_file() and canary.encode() in path.read_bytes()] == []
