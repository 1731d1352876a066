"""Each thing that cannot be had here is told before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from runtime.formats.format import DOCKERFILE
from runtime.formats.runnable import objections
from runtime.task import read_task
from tests.runtime.formats.samples import COMPOSE, HARBOR, TASK_TOML, write_files

SERVICES = f"{COMPOSE}  db:\n    image: postgres\n"


def aliased(names: int, each: int, *, key: str = "deploy") -> str:
    """A compose file of one container, a few lines of which stand for `each` ** `names` nodes."""
    levels = [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * each)}]\n" for n in range(1, names)]
    return f"x:\n  - &a0 [x]\n{''.join(levels)}services:\n  main: {{{key}: *a{names - 1}}}\n"


def told(tmp_path: Path, changes: dict[str, str], engine: Literal["docker", "namespace"] = "namespace") -> list[str]:
    return objections(read_task(write_files(tmp_path / "t", HARBOR | changes)), engine=engine)


def test_a_plain_task_runs_anywhere(tmp_path: Path) -> None:
    assert told(tmp_path / "a", {}) == told(tmp_path / "b", {}, "docker") == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({DOCKERFILE: "FROM ubuntu:24.04\n"}, "the namespace engine cannot build FROM ubuntu:24.04"),
        ({DOCKERFILE: HARBOR[DOCKERFILE] + "COPY gone.txt /x\n"}, "'gone.txt' is not in the build context"),
        ({DOCKERFILE: HARBOR[DOCKERFILE] + "NONSENSE x\n"}, "unknown instruction NONSENSE"),
        ({"environment/docker-compose.yaml": SERVICES}, "it needs more than one container (db)"),
        ({"environment/docker-compose.yaml": "services: ["}, "its docker-compose.yaml is while parsing"),
        ({"environment/docker-compose.yaml": "services:\n  main: {privileged: true}\n"}, "asks for privileged"),
        ({"environment/docker-compose.yaml": "services:\n  main: {volumes: ['/data:/d']}\n"}, "mounts /data"),
        ({"environment/docker-compose.yaml": "services:\n  main: {command: nginx}\n"}, "a program of its own (nginx)"),
        ({"environment/docker-compose.yaml": "services:\n  main: {command: sh run.sh}\n"}, "of its own (sh run.sh)"),
        ({"environment/docker-compose.yaml": "services:\n  main: {environment: [A=1]}\n"}, "sets variables (A)"),
        ({"environment/docker-compose.yaml": "services:\n  main: {deploy: {devices: [gpu]}}\n"}, "asks for devices"),
        ({"environment/docker-compose.yaml": "services:\n  main: {build: {args: {A: 1}}}\n"}, "build.args"),
        ({"environment/docker-compose.yaml": aliased(9, 10)}, "too large with its aliases (*name) expanded"),
        ({"environment/docker-compose.yaml": aliased(2000, 1)}, "nested more than 50 deep"),
        ({"environment/docker-compose.yaml": "services: {main: {deploy: &d [*d]}}"}, "(*d) of nothing before it"),
        ({"environment/docker-compose.yaml": "services: {main: {tty: !!bool maybe}}"}, "the type in its tag"),
        ({"tests/test.sh": "set -e\napt-get update\n"}, "(tests/test.sh, line 2: apt-get update)"),
        ({"tests/test.sh": "  curl -LsSf https://x.invalid/uv.sh | sh\n"}, "line 1: curl -LsSf https:"),
        ({"task.toml": TASK_TOML.replace("gpus = 0", "gpus = 2")}, "it needs gpus (2)"),
        ({"task.toml": TASK_TOML.replace("gpus = 0", "os = 'windows'")}, "the operating system windows"),
        ({"task.toml": TASK_TOML.replace("gpus = 0", "network_mode = 'allowlist'")}, "a list of allowed hosts"),
        ({"task.toml": TASK_TOML.replace("gpus = 0", "healthcheck = {command = 'true'}")}, "(healthcheck)"),
        ({"task.toml": TASK_TOML.replace("gpus = 0", "mcp_servers = [{name = 'm'}]")}, "it needs MCP servers"),
        (
            {"task.toml": TASK_TOML.replace('LIMIT = "417"', 'KEY = "${KEY}"')},
            "verifier.env.KEY is taken from the host",
        ),
        (
            {"task.toml": TASK_TOML.replace("45.0", "45.0\nenvironment_mode = 'separate'")},
            "an environment of their own",
        ),
    ],
)
def test_what_it_lacks_is_the_reason(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    (only,) = told(tmp_path, changes)
    assert reason in only


def test_a_compose_file_may_use_aliases(tmp_path: Path) -> None:
    shared = "x-shared: &shared {tty: true, environment: {}}\nservices:\n  main: {<<: *shared, image: x}\n"
    assert told(tmp_path, {"environment/docker-compose.yaml": shared}) == []


def test_docker_is_left_to_build_what_only_docker_reads(tmp_path: Path) -> None:
    changes = {DOCKERFILE: "FROM golang AS b\nFROM debian:12\nCOPY --from=b /x /x\n"}
    assert told(tmp_path, changes, "docker") == []


def test_a_volume_is_told_where_its_files_would_be_lost(tmp_path: Path) -> None:
    changes = {DOCKERFILE: HARBOR[DOCKERFILE] + "VOLUME /data\n"}
    (only,) = told(tmp_path / "a", changes, "docker")
    assert "the docker engine cannot build an image with VOLUME /data" in only
    assert told(tmp_path / "b", changes, "namespace") == []


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    changes = {"environment/docker-compose.yaml": SERVICES, DOCKERFILE: "FROM ubuntu:24.04\n"}
    assert len(told(tmp_path, changes)) == 2
