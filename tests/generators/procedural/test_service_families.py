"""The families whose pieces have services, held to every promise of a family on the base that has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from generators.procedural import library
from generators.procedural.compose import compose
from generators.procedural.family import Family
from generators.taxonomy import load_taxonomy
from sandbox.base import BASE_DOCKERFILE, SERVICE_PACKAGES, base_dockerfile
from tests.machine import base_environment, need_namespaces

from .harness import Ground, problems_of


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    need_namespaces()
    return Ground(base_environment(SERVICE_PACKAGES).rootfs, tmp_path)


@pytest.mark.namespace
@pytest.mark.parametrize("family", library.SERVICES, ids=lambda family: family.name)
def test_piece_keeps_every_promise(ground: Ground, family: Family) -> None:
    assert problems_of(ground, family, 17, 1) == []


@pytest.mark.namespace
@pytest.mark.sweep
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("family", library.SERVICES, ids=lambda family: family.name)
def test_every_depth_keeps_every_promise(ground: Ground, family: Family, depth: int) -> None:
    found = {seed: problems_of(ground, family, seed, depth) for seed in range(100, 104)}
    assert {seed: problems for seed, problems in found.items() if problems} == {}


def test_a_task_with_services_asks_for_their_base_and_starts_them() -> None:
    names = tuple(family.name for family in library.SERVICES)
    for index in range(20):
        task = compose(load_taxonomy().draw(1, index, levels=[8], families=names))
        dockerfile = task.environment.dockerfile
        assert dockerfile.startswith(base_dockerfile(SERVICE_PACKAGES))
        assert dockerfile.endswith('USER agent\nENTRYPOINT ["/usr/local/bin/start-services"]\n')
        assert len(task.environment.services) == len(task.pieces)
        assert "services.sh" in {file.path for file in task.environment.files}


def test_a_run_without_names_of_families_needs_no_larger_base() -> None:
    for index in range(200):
        environment = compose(load_taxonomy().draw(0, index)).environment
        assert environment.services == ()
        assert environment.dockerfile.startswith(BASE_DOCKERFILE)
        assert not environment.dockerfile.startswith(base_dockerfile(SERVICE_PACKAGES))
