"""The daemonless engine on a real base file system."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.namespace.engine import NamespaceEngine
from sandbox.namespace.zygote.cgroups import Cgroups
from tests.machine import base_environment, need_namespaces


@pytest.fixture(scope="session")
def rootfs() -> Path:
    need_namespaces()
    return base_environment().rootfs


@pytest.fixture(scope="session")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trusted")
    (directory / "marker").write_text("ours\n")
    return directory


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def namespace_engine(state_dir: Path, rootfs: Path, trusted: Path) -> AsyncIterator[NamespaceEngine]:
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=trusted) as engine:
        yield engine


@pytest.fixture
def namespace_groups(rootfs: Path) -> Cgroups:
    groups = Cgroups.detect()
    if groups.notes:
        pytest.skip("no control groups here")
    return groups
