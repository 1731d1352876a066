"""Tasks with services, through the whole pipeline: certified, earned again, on another engine too."""

from __future__ import annotations

import tomllib
from pathlib import Path

import anyio
import pytest

from generators.procedural.library import SERVICES
from generators.verify import verify_all
from runtime.errors import TaskInvalid
from runtime.settings import PathSettings
from runtime.task import read_task
from sandbox.base import SERVICE_PACKAGES
from sandbox.docker import DockerEngine
from sandbox.open import open_engine
from tests.generators.running import generate, namespace_engine, new_place, settings_for
from tests.machine import absent, base_environment, need_namespaces


async def _one_of_each(tmp_path: Path, *families: str) -> list[Path]:
    made = []
    async with namespace_engine(tmp_path / "engine") as engine:
        for family in families:
            sets = ("generate.seed=3", "generate.levels=[1]", "generate.count=1", "generate.attempts_least=1")
            settings = settings_for(tmp_path, *sets, f'generate.families=["{family}"]')
            out = tmp_path / family
            summary = await generate(settings, new_place(settings, out), engine)
            made += [out / task.directory for task in summary.tasks]
    return made


@pytest.mark.namespace
async def test_each_family_gives_a_certified_task(tmp_path: Path) -> None:
    need_namespaces()
    base_environment(SERVICE_PACKAGES)
    names = [family.name for family in SERVICES]
    made = await _one_of_each(tmp_path, *names)
    assert [path.parent.name for path in made] == names
    for path in made:
        task = read_task(path)
        config = tomllib.loads((path / "task.toml").read_text())
        assert [entry["name"] for entry in config["metadata"]["termloom"]["services"]] == [
            s.name for s in task.services
        ]
        assert task.services[0].check in config["environment"]["healthcheck"]["command"]
        assert task.services[0].command in (path / "environment" / "services.sh").read_text().replace("'\"'\"'", "'")


@pytest.mark.docker
@pytest.mark.namespace
async def test_a_certificate_with_services_is_earned_again_on_docker(tmp_path: Path) -> None:
    need_namespaces()
    if reason := await DockerEngine.probe(None):
        absent(f"docker: {reason}")
    base_environment(SERVICE_PACKAGES)
    (made,) = await _one_of_each(tmp_path, "redis-keys")
    settings = settings_for(tmp_path)
    cache = PathSettings().cache
    async with open_engine("docker", cache=cache, state=tmp_path / "docker", progress=print) as engine:
        assert await verify_all([made], engine=engine, settings=settings) == {made: []}


@pytest.mark.namespace
async def test_services_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    need_namespaces()
    base_environment(SERVICE_PACKAGES)
    (made,) = await _one_of_each(tmp_path, "redis-keys")
    config = made / "task.toml"
    text = await anyio.to_thread.run_sync(config.read_text)
    for wrong, problem in (
        (text.replace('name = "redis"', 'name = "Redis!"'), "metadata.termloom.services: 0.name"),
        (text.replace("timeout_s = 30", "timeout_s = 0"), "metadata.termloom.services: 0.timeout_s"),
        (text.replace("interval_s", "interval"), "metadata.termloom.services: 0.interval"),
    ):
        config.write_text(wrong)
        with pytest.raises(TaskInvalid, match=problem):
            read_task(made)
