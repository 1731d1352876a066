"""The ground on which pieces are tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine import base_environment, need_namespaces

from .harness import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    need_namespaces()
    return Ground(base_environment().rootfs, tmp_path)
