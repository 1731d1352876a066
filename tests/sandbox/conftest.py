"""Real engines for the suites that every engine must pass."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import pytest

from sandbox.base import BASE_DOCKERFILE
from sandbox.basebuild import default_cache
from sandbox.docker import DockerEngine
from sandbox.engine import Engine
from sandbox.namespace.engine import NamespaceEngine
from sandbox.open import open_engine
from sandbox.spec import BuildContext
from tests.machine import absent, base_environment

Name = Literal["docker", "namespace"]
OpenEngine = Callable[[], AbstractAsyncContextManager[tuple[Engine, str]]]


def _missing(name: Name) -> str | None:
    return anyio.run(DockerEngine.probe, None) if name == "docker" else NamespaceEngine.probe()


@pytest.fixture(
    scope="session",
    params=[pytest.param("namespace", marks=pytest.mark.namespace), pytest.param("docker", marks=pytest.mark.docker)],
)
def engine_name(request: pytest.FixtureRequest) -> Name:
    name: Name = request.param
    if (reason := _missing(name)) is not None:
        absent(f"{name}: {reason}")
    base_environment()
    return name


@pytest.fixture
def open_any(engine_name: Name, tmp_path: Path) -> OpenEngine:
    """Opens an engine, with the base image, inside the test's own task."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Engine, str]]:
        cache = default_cache(os.environ)
        async with open_engine(engine_name, cache=cache, state=tmp_path / "state", progress=print) as engine:
            built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
            assert built.ok, built.log_tail
            yield engine, built.image

    return opened
