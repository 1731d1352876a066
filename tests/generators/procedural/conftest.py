"""The ground on which pieces are tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    rootfs = Ground.rootfs_from_environment()
    if rootfs is None:
        pytest.skip("needs root and TERMLOOM_TEST_ROOTFS, an unpacked base environment")
    return Ground(rootfs, tmp_path)
