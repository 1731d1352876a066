"""Parts are killed at random moments while a job is at work: its items end as if nothing had happened, and nothing is
left behind.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from tests.drills.cable import Cable
from tests.drills.drill_jobs import word
from tests.drills.moments import Chance, DrillDaemon, DrillWorker, count_for, moments, submit, undisturbed
from tests.drills.own_dockerd import own_dockerd
from tests.drills.remains import no_descriptor_left, nothing_left
from tests.machine import absent, base_environment, need_namespaces
from tests.runtime.conftest import NatsServer
from tests.runtime.daemon.served import end_of

pytestmark = pytest.mark.namespace


@pytest.fixture(autouse=True)
def engine_can_be_used() -> None:
    need_namespaces()
    base_environment()


class DockerDaemon(DrillDaemon):
    sandbox = "docker"


@contextmanager
def own_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that may be killed."""
    if shutil.which("nats-server") is None:
        absent("no nats-server on the path")
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@moments
async def test_the_daemon_is_killed(tmp_path: Path, moments: int):
    count, chance = count_for(moments), Chance(101)
    with nothing_left(tmp_path) as left:
        daemon = DrillDaemon(tmp_path)
        job = await submit(daemon.client, tmp_path / "out", count=count)
        for _ in range(moments):
            await chance.moment(daemon.client, job)
            left.look()
            daemon.stop(signal.SIGKILL)
            daemon = DrillDaemon(tmp_path)
        with daemon:
            assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(count)
            assert daemon.stop() == 0


@pytest.mark.nats
@moments
async def test_a_worker_is_killed(tmp_path: Path, moments: int):
    count, chance = count_for(moments), Chance(102)
    with (
        nothing_left(tmp_path) as left,
        own_nats(tmp_path) as nats,
        DrillDaemon(tmp_path, "--bus", nats.url) as daemon,
    ):
        workers = [DrillWorker(tmp_path, f"worker{n}", nats.url) for n in range(2)]
        with no_descriptor_left(daemon.pid):
            job = await submit(daemon.client, tmp_path / "out", count=count)
            for moment in range(moments):
                await chance.moment(daemon.client, job)
                left.look()
                workers[moment % 2].stop(signal.SIGKILL)
                workers[moment % 2] = DrillWorker(tmp_path, f"worker{moment % 2}", nats.url)
            assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(count)
        assert [worker.stop() for worker in workers] == [0, 0]
        assert daemon.stop() == 0


@pytest.mark.nats
@moments
async def test_the_bus_is_killed(tmp_path: Path, moments: int):
    count, chance = count_for(moments), Chance(103)
    with nothing_left(tmp_path), own_nats(tmp_path) as nats, DrillDaemon(tmp_path, "--bus", nats.url) as daemon:
        with no_descriptor_left(daemon.pid), DrillWorker(tmp_path, "worker", nats.url) as worker:
            job = await submit(daemon.client, tmp_path / "out", count=count)
            for _ in range(moments):
                await chance.moment(daemon.client, job)
                nats.stop(signal.SIGKILL)
                await anyio.sleep(chance.draw.uniform(0.0, 1.0))
                nats.start()
            assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(count)
            assert worker.stop() == 0
        assert daemon.stop() == 0


@moments
async def test_the_network_to_the_model_is_cut(tmp_path: Path, moments: int):
    count, chance = count_for(moments), Chance(104)

    def answer(request: dict[str, Any], _: int) -> Reply:
        number = int(request["messages"][0]["content"].split()[1])
        return Reply(text=word(number), delay_s=0.05)

    async with ScriptedServer(answer) as server, Cable(urlsplit(server.base_url).port or 0) as cable:
        with nothing_left(tmp_path), DrillDaemon(tmp_path) as daemon:
            chat = {"base_url": f"http://127.0.0.1:{cable.port}/v1", "model": "scripted", "deadline_s": 2.0}
            with no_descriptor_left(daemon.pid):
                job = await submit(daemon.client, tmp_path / "out", count=count, chat=chat)
                for _ in range(moments):
                    await chance.moment(daemon.client, job)
                    cable.cut(chance.draw.choice(["dropped", "mute"]))
                    await anyio.sleep(chance.draw.uniform(0.1, 3.0))
                    cable.mend()
                assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(count)
            assert daemon.stop() == 0


@pytest.mark.docker
@moments
async def test_the_container_engine_is_killed(tmp_path: Path, moments: int):
    count, chance = count_for(moments), Chance(105)
    with nothing_left(tmp_path), own_dockerd() as engine:
        with DockerDaemon(tmp_path, "--set", f"sandbox.docker_url={engine.url}") as daemon:
            with no_descriptor_left(daemon.pid):
                job = await submit(daemon.client, tmp_path / "out", count=count)
                for _ in range(moments):
                    await chance.moment(daemon.client, job)
                    engine.kill()
                    await anyio.sleep(chance.draw.uniform(0.0, 1.0))
                    await anyio.to_thread.run_sync(engine.start)
                assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(count)
            assert daemon.stop() == 0
        assert (engine.containers(), engine.networks()) == ([], ["bridge", "host", "none"])
