"""The daemonless engine on a real base file system."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.namespace.engine import NamespaceEngine
from sandbox.namespace.zygote.cgroups import Cgroups


@pytest.fixture(scope="session")
def rootfs() -> Path:
    value = os.environ.get("TERMLOOM_TEST_ROOTFS")
    if not value:
        pytest.skip("TERMLOOM_TEST_ROOTFS names no base root file system")
    reason = NamespaceEngine.probe()
    if reason:
        pytest.skip(reason)
    return Path(value)


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
