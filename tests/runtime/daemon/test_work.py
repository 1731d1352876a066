"""Other machines take part: workers in processes of their own on one bus, one of them killed in mid-work."""

from __future__ import annotations

import shutil
import signal

import anyio
import pytest

from tests.machine import absent, base_environment, need_namespaces
from tests.runtime.conftest import NatsServer
from tests.runtime.daemon.served import Daemon, WorkerProcess, boards, end_of, submit, until

pytestmark = [pytest.mark.namespace, pytest.mark.nats]


@pytest.fixture(autouse=True)
def engine_can_be_used() -> None:
    need_namespaces()
    base_environment()


async def test_workers_take_what_needs_a_sandbox_and_one_killed_in_mid_work_loses_nothing(tmp_path, nats_url):
    with anyio.fail_after(150), Daemon(tmp_path, "--bus", nats_url) as daemon:
        with WorkerProcess(tmp_path, "one", nats_url) as one, WorkerProcess(tmp_path, "two", nats_url) as two:
            job = await submit(daemon.client, tmp_path / "out", count=60, pace_s=0.2)
            await until(daemon.client, job, "done", stage="plane", times=6)
            one.stop(signal.SIGKILL)
            end = await end_of(daemon.client, job)
            assert end["result"]["boards"] == boards(60)
            assert two.stop() == 0
            done = int(next(line for line in two.lines if "pieces of work" in line).split()[3])
            assert done > 0
        answers = f"results-{(daemon.state / 'daemon' / 'name').read_text()}"
        queues = {queue["queue"]: queue["ready"] for queue in (await daemon.client.get("state"))["queues"]}
        assert queues == {"generate-furnish": 0, "generate-examine": 0, "generate-solve": 0, "generate-certify": 0,
                          "shop-plane": 0, "synthesize-enact": 0, answers: 0}  # fmt: skip


async def test_what_fails_on_a_worker_fails_in_the_run_as_it_would_at_home(tmp_path, nats_url):
    with anyio.fail_after(100), Daemon(tmp_path, "--bus", nats_url) as daemon:
        job = await submit(daemon.client, tmp_path / "out", count=2, broken=["001"], mended="/nowhere")
        assert (await end_of(daemon.client, job))["result"]["boards"] == [["000", 0]]
        letters = await daemon.client.get("dead-letters")
        assert [letter["reason"] for letter in letters] == ["gave_up: the plane is blunt"]


@pytest.mark.parametrize(
    ("refuses", "told"),
    [("stage", "http://model: no such model (HTTP 404)"), ("worker", "loom: has no warp. Give it one")],
)
async def test_what_only_the_user_can_mend_ends_its_run_and_neither_daemon_nor_worker(
    tmp_path, nats_url, refuses, told
):
    mended = tmp_path / "mended"
    with (
        anyio.fail_after(100),
        Daemon(tmp_path, "--bus", nats_url) as daemon,
        WorkerProcess(tmp_path, "one", nats_url) as one,
    ):
        other = await submit(daemon.client, tmp_path / "other", count=20, pace_s=0.1)
        options = {"count": 3, "refuses": refuses, "mended": str(mended)}
        job = await submit(daemon.client, tmp_path / "out", **options)
        end = await end_of(daemon.client, job)
        assert (end["state"], end["detail"]) == ("failed", told)
        assert (await end_of(daemon.client, other))["result"]["boards"] == boards(20)
        mended.touch()
        await daemon.client.post("jobs", job, "resume")
        assert (await end_of(daemon.client, job))["result"]["boards"] == boards(3)
        assert one.stop() == 0
        assert daemon.stop() == 0


async def test_two_daemons_on_one_server_each_hear_their_own_answers(tmp_path, nats_url):
    here, there = tmp_path / "here", tmp_path / "there"
    with (
        anyio.fail_after(100),
        Daemon(here, "--bus", nats_url) as ours,
        Daemon(there, "--bus", nats_url) as theirs,
        WorkerProcess(tmp_path, "one", nats_url),
    ):
        jobs = [(d.client, await submit(d.client, p / "out", count=20)) for d, p in ((ours, here), (theirs, there))]
        for client, job in jobs:
            assert (await end_of(client, job))["result"]["boards"] == boards(20)


async def test_a_bus_that_is_killed_and_comes_back_loses_nothing(tmp_path):
    if shutil.which("nats-server") is None:
        absent("no nats-server on the path")
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        with (
            anyio.fail_after(170),
            Daemon(tmp_path, "--bus", server.url) as daemon,
            WorkerProcess(tmp_path, "one", server.url),
        ):
            job = await submit(daemon.client, tmp_path / "out", count=40, pace_s=0.1)
            for times in (3, 12):
                await until(daemon.client, job, "done", stage="plane", times=times)
                server.stop(signal.SIGKILL)
                state = await daemon.client.get("state")
                assert (state["queues"], [job["job"]["state"] for job in state["jobs"]]) == ([], ["running"])
                assert "the bus does not answer" in state["queues_unknown"]
                server.start()
            assert (await end_of(daemon.client, job))["result"]["boards"] == boards(40)
    finally:
        server.stop()


async def test_a_daemon_killed_while_work_is_out_ends_with_the_same_items(tmp_path, nats_url):
    with anyio.fail_after(150), WorkerProcess(tmp_path, "one", nats_url):
        with Daemon(tmp_path, "--bus", nats_url) as daemon:
            job = await submit(daemon.client, tmp_path / "out", count=30, pace_s=0.1)
            await until(daemon.client, job, "done", stage="plane", times=3)
            daemon.stop(signal.SIGKILL)
        with Daemon(tmp_path, "--bus", nats_url) as daemon:
            assert (await end_of(daemon.client, job))["result"]["boards"] == boards(30)
