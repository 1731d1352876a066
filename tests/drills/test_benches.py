"""The benches at their smallest: each runs through, and keeps rows with the machine they were made on."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from bench import bus, sessions, workers
from runtime.errors import UserError
from sandbox.basebuild import default_cache
from tests.machine import absent, base_environment, need_namespaces


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kept() -> list[dict[str, Any]]:
    (path,) = Path("runs/bench").iterdir()
    found = json.loads(path.read_text())
    assert found["machine"]["cores"] >= 1
    return found["rows"]


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            absent(f"no {program} on the path")


@pytest.mark.nats
async def test_the_buses_are_measured_against_their_floors():
    need("nats-server")
    await bus.measure(messages=64, nats_messages=32, pairs=[1, 4], url="")
    assert [(row["bus"], row["producers"]) for row in kept()] == [
        ("memory", 1), ("memory", 4), ("nats", 1), ("nats", 4),
    ]  # fmt: skip
    assert all(row["per s"] > 0 and row["floor/s"] > 0 and row["p50 ms"] > 0 for row in kept())


@pytest.mark.namespace
async def test_sessions_are_measured_at_each_count(tmp_path: Path):
    need_namespaces()
    base_environment()
    cache, state = default_cache(os.environ), tmp_path / "state"
    await sessions.measure("namespace", [1, 3], cache=cache, state=state, idle_s=0.1, rounds=10)
    assert [row["open"] for row in kept()] == [1, 3]


@pytest.mark.parametrize("engine", ["namespace", "docker"])
def test_more_sessions_than_the_machine_has_room_for_are_refused_by_the_name_of_the_limit(engine: str):
    with pytest.raises(UserError, match=r"sessions on (namespace|docker) need \d+, and -?\d+ are free"):
        sessions.require_room(engine, 10_000_000)


def test_a_docker_daemon_without_room_is_named_with_the_way_out(tmp_path: Path):
    address = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as daemon:  # of this very process
        daemon.bind(str(address))
        daemon.listen()
        with pytest.raises(UserError, match=f"open files of the daemon at unix://{address}") as refusal:
            sessions.require_room("docker", 10_000_000, [f"unix://{address}"])
    assert "--docker-url" in str(refusal.value)


@pytest.mark.namespace
@pytest.mark.nats
async def test_workers_apart_are_measured():
    need_namespaces()
    need("nats-server", "ip", "nsenter")
    await workers.measure(workers=2, messages=20, slots=4, wait_s=0.01)
    assert [row["workers"] for row in kept()] == [1, 2]
