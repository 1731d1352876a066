"""Drills run on jobs that are disturbed at moments drawn from a seed: a few in CI, twenty with `-m sweep`."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from runtime.daemon.client import DaemonClient
from tests.drills.drill_jobs import word
from tests.runtime.daemon.served import Daemon, WorkerProcess

PACE_S = 0.05
SHORT_LEASES = "import runtime.daemon.spread; runtime.daemon.spread.LEASE_S = 3.0"
"""Calls of a killed worker come back soon."""

moments = pytest.mark.parametrize("moments", [2, pytest.param(20, marks=pytest.mark.sweep)])


class DrillDaemon(Daemon):
    kind = Path(__file__).with_name("drill_jobs.py")
    prelude = SHORT_LEASES


class DrillWorker(WorkerProcess):
    kind = Path(__file__).with_name("drill_jobs.py")
    prelude = SHORT_LEASES


class Chance:
    """When to strike. Its seed is printed, as pytest shows it with a failure."""

    def __init__(self, seed: int) -> None:
        print(f"drill with seed {seed}")
        self.draw = random.Random(seed)

    async def moment(self, client: DaemonClient, job: str) -> None:
        """After some more items, and a fraction of a second."""
        so_far = await _passed(client, job, 0)
        await _passed(client, job, so_far + self.draw.randrange(1, 6))
        await anyio.sleep(self.draw.uniform(0.0, 0.2))


async def _passed(client: DaemonClient, job: str, least: int) -> int:
    """Items that have passed the stage since the daemon took the job up, once it did and there are so many."""
    while True:
        state = await client.get("jobs", job)
        assert state["job"]["state"] in ("queued", "running"), state
        passed = [stage["passed"] for stage in state["stages"] if stage["stage"] == "run"]
        if passed and passed[0] >= least:
            return passed[0]
        await anyio.sleep(0.01)


def count_for(moments: int) -> int:
    """Items enough that a job is not over before its last moment."""
    return 40 * moments


async def submit(client: DaemonClient, out: Path, *, count: int, **settings: object) -> str:
    options = {"out": str(out), "count": count, "pace_s": PACE_S}
    return (await client.post("jobs", body={"kind": "drill", "options": options, "settings": settings}))["job"]


def undisturbed(count: int) -> list[list[str]]:
    """What a run gives that nothing disturbs."""
    return [[f"{n:03d}", f"{word(n)}\n"] for n in range(count)]
