"""Tasks with services: certified through the whole pipeline, on both engines, and read back from their directory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from generators.assemble import assemble
from generators.procedural.library import SERVICES
from runtime.errors import TaskInvalid
from runtime.formats.runnable import objections
from runtime.settings import PathSettings
from runtime.task import Task, read_task, write_task
from sandbox.base import SERVICE_PACKAGES
from sandbox.docker import DockerEngine
from sandbox.engine import Engine
from sandbox.open import open_engine
from sandbox.services import SCRIPT, Service, start_script
from tests.generators.parts import make_solved
from tests.generators.running import generate, namespace_engine, new_place, settings_for
from tests.machine import absent, base_environment, need_namespaces

SETS = (
    "generate.seed=3",
    "generate.levels=[1]",
    "generate.count=1",
    "generate.attempts_least=1",
    "generate.certificate_repeats=1",
)


async def _certified(tmp_path: Path, family: str, engine: Engine) -> Task:
    settings = settings_for(tmp_path, *SETS, f'generate.families=["{family}"]')
    summary = await generate(settings, new_place(settings, tmp_path / family), engine)
    (made,) = summary.tasks
    return read_task(tmp_path / family / made.directory)


@pytest.mark.namespace
@pytest.mark.parametrize("family", SERVICES, ids=lambda family: family.name)
async def test_each_family_gives_a_certified_task(tmp_path: Path, family: object) -> None:
    need_namespaces()
    base_environment(SERVICE_PACKAGES)
    async with namespace_engine(tmp_path / "engine") as engine:
        task = await _certified(tmp_path, family.name, engine)  # type: ignore[attr-defined]
    assert len(task.services) == 1
    assert task.certificate is not None


@pytest.mark.docker
async def test_a_task_with_services_is_certified_on_docker(tmp_path: Path) -> None:
    if reason := await DockerEngine.probe(None):
        absent(f"docker: {reason}")
    base_environment(SERVICE_PACKAGES)
    async with open_engine("docker", cache=PathSettings().cache, state=tmp_path / "e", progress=print) as engine:
        task = await _certified(tmp_path, "redis-keys", engine)
    assert [service.name for service in task.services] == ["redis"]


DATABASE = Service(name="db", command="serve --all", check="ask 'is it up'", timeout_s=20)
WEB = Service(name="web", command="listen", check="look")


def _written(tmp_path: Path) -> Path:
    solved = make_solved()
    environment = replace(solved.examined.environment, services=(DATABASE, WEB))
    examined = replace(solved.examined, environment=environment)
    directory = tmp_path / "task"
    write_task(assemble(replace(solved, examined=examined), seed=0), directory)
    return directory


def test_services_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    task = read_task(_written(tmp_path))
    assert task.services == (DATABASE, WEB)
    health = task.config.model_dump()["environment"]["healthcheck"]
    assert health["command"] == "(ask 'is it up') && (look)"
    assert start_script(task.services).count("\nstart ") == 2
    assert SCRIPT == "services.sh"


@pytest.mark.parametrize("engine", ["docker", "namespace"])
def test_a_task_whose_services_are_told_can_be_run(tmp_path: Path, engine: Literal["docker", "namespace"]) -> None:
    assert objections(read_task(_written(tmp_path)), engine=engine) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('name = "web"', 'name = "Web!"', "metadata.termloom.services: 1.name"),
        ('name = "web"', 'name = "db"', "two services have the same name"),
        ("timeout_s = 20", "timeout_s = 0", "metadata.termloom.services: 0.timeout_s"),
        ("interval_s", "interval", "metadata.termloom.services: 0.interval"),
        ('command = "listen"', "command = 3", "metadata.termloom.services: 1.command"),
    ],
)
def test_services_that_cannot_be_read_are_told(tmp_path: Path, before: str, after: str, problem: str) -> None:
    directory = _written(tmp_path)
    config = directory / "task.toml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after, 1))
    with pytest.raises(TaskInvalid, match=problem):
        read_task(directory)
