"""A real engine: DOCKER_HOST or the default socket. Without one the tests are skipped, but in CI they fail."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from sandbox.base import BASE_DOCKERFILE
from sandbox.basebuild import Base
from sandbox.docker.client import probe
from sandbox.docker.engine import DockerEngine
from sandbox.docker.sandbox import DockerSandbox
from sandbox.spec import BuildContext, Limits, Profile, SandboxSpec
from tests.machine import absent, base_environment

OpenEngine = Callable[[], AbstractAsyncContextManager[DockerEngine]]
RUN = f"tests-{secrets.token_hex(4)}"
"""Tells this test run apart from others on the same engine."""
LIMITS = Limits(memory_mb=256, pids=64, lifetime_s=120.0)


@pytest.fixture(scope="session")
def docker() -> None:
    reason = anyio.run(probe, None)
    if reason is not None:
        absent(f"no Docker engine: {reason}")


@pytest.fixture(scope="session")
def base(docker: None) -> Base:
    return base_environment()


@pytest.fixture
def open_docker(base: Base) -> OpenEngine:
    """Opens an engine inside the test's own task, as its task group demands."""

    async def known_base(_packages: tuple[str, ...]) -> Base:
        return base

    return lambda: DockerEngine(base=known_base)


@asynccontextmanager
async def started(
    engine: DockerEngine,
    *,
    dockerfile: str = BASE_DOCKERFILE,
    profile: Profile = Profile.AGENT,
    limits: Limits = LIMITS,
) -> AsyncIterator[DockerSandbox]:
    """A sandbox over an image built from `dockerfile`."""
    built = await engine.build(BuildContext(dockerfile=dockerfile))
    assert built.ok, built.log_tail
    spec = SandboxSpec(image=built.image, profile=profile, limits=limits, run_id=RUN, purpose="test")
    async with await engine.create(spec) as sandbox:
        yield sandbox
