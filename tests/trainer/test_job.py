"""Training, evaluations and rollouts as jobs of a real daemon: followed, killed, drained, resumed, cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from runtime.chat.script import Fault
from runtime.chat.scripted import ScriptedServer
from runtime.control import ctl
from runtime.errors import UserError
from runtime.options import Common
from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import ROOT, Daemon, end_of, job_file, process_of, until
from tests.trainer.asked_jobs import measuring, solves, training
from trainer.checkpoint import newest
from trainer.evaluate import read_evaluation
from trainer.metrics import read_metrics
from trainer.model import load_model

pytestmark = [pytest.mark.namespace, pytest.mark.slow]


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


async def test_a_training_job_outlives_the_daemon_and_is_followed_and_drained(tmp_path, say):
    with anyio.fail_after(280):
        with Daemon(tmp_path) as daemon:
            job = (await daemon.client.post("jobs", body=training(tmp_path, epochs=40)))["job"]
            await until(daemon.client, job, "step", times=2)
            told = await say("ps")
            assert told["jobs"][0]["numbers"]["step"] >= 2
            with pytest.raises(UserError, match="cannot be paused"):
                await say("pause", job)
            daemon.stop(signal.SIGKILL)
        before = len(read_metrics(tmp_path / "run" / "metrics.jsonl"))
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "step")
            assert (await say("explain", job))["jobs"][0]["job"]["state"] == "running"
            assert daemon.stop(signal.SIGTERM) == 0
        lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
        assert len(lines) >= before  # it went on, and did not begin again
        assert job_file(daemon.state, job)["state"] == "running"
    steps = [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))


async def test_a_training_job_whose_daemon_and_process_are_killed_trains_on_each_episode_once(tmp_path, say):
    with anyio.fail_after(280):
        with Daemon(tmp_path) as daemon:
            job = (await daemon.client.post("jobs", body=training(tmp_path, epochs=6)))["job"]
            await until(daemon.client, job, "step")
            daemon.stop(signal.SIGKILL)
        with Daemon(tmp_path) as daemon:
            await until(daemon.client, job, "step")
            os.kill(process_of(next((tmp_path / "state" / "train").iterdir())), signal.SIGKILL)
            end = await end_of(daemon.client, job)
            assert end["state"] == "finished", end["detail"]
            assert (await say("ps"))["sandboxes"] == []
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    trained = newest(tmp_path / "run" / "checkpoints").trained
    assert trained == {f"a/{epoch}/{member}" for epoch in range(6) for member in range(2)}
    load_model(Path(end["result"]["policy"]))


async def test_an_evaluation_is_submitted_by_its_command_and_goes_on_after_a_kill(tmp_path, say):
    on_its_way = anyio.Event()

    def stalls_once(request, number):
        """The second answer of the third episode is on its way until the kill."""
        if number != 6:
            return solves(request, number)
        on_its_way.set()
        return Fault(kind="stall")

    with anyio.fail_after(250):
        async with ScriptedServer(stalls_once) as server:
            with Daemon(tmp_path, "--set", "limits.run=1") as daemon:
                job = (await daemon.client.post("jobs", body=measuring(tmp_path, server.base_url, attempts=4)))["job"]
                await until(daemon.client, job, "settled", times=2)
                await on_its_way.wait()
                daemon.stop(signal.SIGKILL)
            with Daemon(tmp_path, "--set", "limits.run=1") as daemon:
                end = await end_of(daemon.client, job)
                assert end["state"] == "finished", end["detail"]
                shown = (await say("ps"))["jobs"][0]
                assert shown["calls"]["tries"] > 0
                again = await evaluate_by_command(tmp_path, server.base_url)
    assert server.calls["evaluate"] == 9  # two an episode, and the one that was on its way at the kill
    assert read_evaluation(tmp_path / "measured").tasks[0].graded == 4
    assert again.returncode == 0, again.stderr
    assert b"job j2, in the daemon" in again.stderr
    assert b"pass@1: 100.0%" in again.stdout


async def evaluate_by_command(tmp_path: Path, base_url: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TERMLOOM_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    command = ["evaluate", str(tmp_path / "tasks"), "--base-url", base_url, "--model", "any"]
    line = [sys.executable, "-c", "from runtime.cli import main; main()", *command, "--attempts", "4"]
    return await anyio.run_process([*line, "--out", str(tmp_path / "measured")], cwd=ROOT, env=environment, check=False)


async def test_an_evaluation_is_paused_and_an_item_with_slashes_is_explained_and_cancelled(tmp_path, say):
    told = anyio.Event()

    class Held(ScriptedServer):
        """Answers the first episode; the others wait for what the job is told meanwhile."""

        async def _complete(self, request):
            if len(self.requests) >= 2:
                await told.wait()
            return await super()._complete(request)

    with anyio.fail_after(150):
        async with Held(solves) as server:
            with Daemon(tmp_path, "--set", "limits.run=1") as daemon:
                job = (await daemon.client.post("jobs", body=measuring(tmp_path, server.base_url, attempts=4)))["job"]
                await until(daemon.client, job, "done")
                assert (await say("pause", job))[0]["paused"]
                explained = await say("explain", f"{job}/a/0/3")
                assert explained["items"][0]["place"] == "waits for stage 'rollout'"
                await say("cancel", f"{job}/a/0/3")
                assert not (await say("unpause", job))[0]["paused"]
                told.set()
                end = await end_of(daemon.client, job)
    assert end["state"] == "finished", end["detail"]
    attempts = read_evaluation(tmp_path / "measured").tasks[0].attempts
    assert [attempt.failure for attempt in attempts if attempt.reward is None] == ["cancelled"]


async def test_an_evaluation_holds_places_in_the_daemons_limits_until_it_is_cancelled(tmp_path, say):
    with anyio.fail_after(150):
        async with ScriptedServer(lambda request, number: Fault(kind="stall")) as server:
            with Daemon(tmp_path, "--set", "limits.run=2") as daemon:
                job = (await daemon.client.post("jobs", body=measuring(tmp_path, server.base_url, attempts=3)))["job"]
                while {each["limit"]: each["holding"] for each in (await say("ps"))["limits"]}["run"] < 2:
                    await anyio.lowlevel.checkpoint()
                told = await say("explain", f"{job}/a/0/0")
                assert "holding 'run'" in told["items"][0]["waits_for"][0]
                await say("cancel", job)
                assert (await end_of(daemon.client, job))["state"] == "cancelled"
                after = await say("ps")
                assert [each["holding"] for each in after["limits"] if each["holding"]] == []
                assert after["sandboxes"] == []
