"""Workers in network namespaces of their own, as on machines of their own, on one queue."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from bench.nats_server import nats_server
from bench.netns import elsewhere
from tests.drills.moments import Chance, DrillDaemon, DrillWorker, submit, undisturbed
from tests.drills.remains import nothing_left
from tests.machine import absent, base_environment, need_namespaces
from tests.runtime.daemon.served import end_of

COUNT = 60


def namespace_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


@pytest.mark.namespace
@pytest.mark.nats
async def test_two_workers_elsewhere_share_the_work_and_one_killed_in_mid_work_loses_nothing(tmp_path: Path):
    need_namespaces()
    base_environment()
    for program in ("nats-server", "ip", "nsenter"):
        if shutil.which(program) is None:
            absent(f"no {program} on the path")
    chance = Chance(106)
    with (
        nothing_left(tmp_path) as left,
        elsewhere(2) as places,
        nats_server(address=places[0].gateway) as url,
        DrillDaemon(tmp_path, "--bus", url) as daemon,
    ):
        one, two = (DrillWorker(tmp_path, place.name, url, prefix=place.prefix) for place in places)
        assert len({namespace_of(pid) for pid in (daemon.pid, one.pid, two.pid)}) == 3
        job = await submit(daemon.client, tmp_path / "out", count=COUNT)
        await chance.moment(daemon.client, job)
        left.look()
        one.stop(signal.SIGKILL)
        assert (await end_of(daemon.client, job))["result"]["items"] == undisturbed(COUNT)
        assert two.stop() == 0
        done = next(line for line in two.lines if "pieces of work" in line)
        assert int(done.split()[3]) > 0
        # What the kill left before the spawner knew of it goes when the next worker opens there.
        assert DrillWorker(tmp_path, places[0].name, url, prefix=places[0].prefix).stop() == 0
        assert daemon.stop() == 0
