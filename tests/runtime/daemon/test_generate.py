"""Generation in the daemon, with a worker on the bus: the command submits and follows, and the same set comes out."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from runtime.dashboard.library import Library
from tests.generators.running import generate, namespace_engine, new_place, settings_for, tree
from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import ROOT, Daemon, WorkerProcess, end_of, job_file

pytestmark = [pytest.mark.namespace, pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(600)]

WANTED = ("generate.count=2", "generate.seed=11", "generate.attempts=4")


@pytest.fixture(autouse=True)
def engine_can_be_used() -> None:
    need_namespaces()
    base_environment()


async def command(daemon: Daemon, name: str, out: Path, *arguments: str) -> subprocess.CompletedProcess:
    sets = [part for setting in WANTED for part in ("--set", setting)]
    line = [
        sys.executable,
        "-c",
        "from runtime.cli import main; main()",
        name,
        *sets,
        "--out",
        str(out),
        *arguments,
    ]
    environment = {**os.environ, "TERMLOOM_STATE": str(daemon.state), "PYTHONPATH": str(ROOT)}
    return await anyio.run_process(line, cwd=ROOT, env=environment, check=False)


def timeless(directory: Path) -> dict[str, bytes]:
    """Every file, without what git prints of a commit that was made just now."""
    of_now = re.compile(rb"(\[[\w./-]+ )[0-9a-f]{7}\]|Date: [^\\]+")
    return {name: of_now.sub(rb"\1", content) for name, (_, content) in tree(directory).items()}


async def killed_at_random_moments(tmp_path: Path) -> None:
    """The same tasks once more, in a daemon that is killed again and again."""
    settings = {"generate": {"count": 2, "seed": 11, "attempts": 4}}
    body = {"kind": "generate", "settings": settings, "options": {"out": str(tmp_path / "killed")}}
    chance = random.Random(3)
    for start in range(5):
        with Daemon(tmp_path) as daemon:
            job = "j3" if start else (await daemon.client.post("jobs", body=body))["job"]
            if start == 4:
                assert (await end_of(daemon.client, job))["state"] == "finished"
                assert (await daemon.client.get("state"))["sandboxes"] == []
                return
            with anyio.move_on_after(chance.uniform(0.5, 3.0)):
                await end_of(daemon.client, job)
            daemon.stop(signal.SIGKILL)


async def test_the_command_gives_the_job_to_the_daemon_and_the_same_set_comes_out(tmp_path, nats_url):
    with anyio.fail_after(580):
        async with namespace_engine(tmp_path / "engine") as engine:
            settings = settings_for(tmp_path, *WANTED)
            await generate(settings, new_place(settings, tmp_path / "alone"), engine)
        with Daemon(tmp_path, "--bus", nats_url) as daemon, WorkerProcess(tmp_path, "worker", nats_url) as worker:
            done = await command(daemon, "generate", tmp_path / "out")
            assert done.returncode == 0, done.stderr
            assert b"job j1, in the daemon" in done.stderr
            assert b"2 of 2 tasks certified" in done.stdout
            again = await command(daemon, "generate", tmp_path / "out")
            assert again.returncode == 2
            assert b"holds the output of a finished run" in again.stderr
            made = await command(daemon, "synthesize", tmp_path / "trajectories", "--tasks", str(tmp_path / "out"))
            assert made.returncode == 0, made.stderr
            assert b"job j2, in the daemon" in made.stderr
            at_home = await command(daemon, "synthesize", tmp_path / "home", "--tasks", str(tmp_path / "out"), "--here")
            assert at_home.returncode == 0, at_home.stderr
            await anyio.to_thread.run_sync(partial(worker.stop))
        await killed_at_random_moments(tmp_path)
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")
    assert tree(tmp_path / "killed") == tree(tmp_path / "alone")
    assert timeless(tmp_path / "trajectories") == timeless(tmp_path / "home")
    assert job_file(daemon.state, "j1")["state"] == "finished"
    assert len(Library(tmp_path / "trajectories").trajectories("trajectories.jsonl")) >= 2
    assert any("pieces of work" in line and " 0 pieces" not in line for line in worker.lines)
