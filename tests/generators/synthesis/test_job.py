"""Synthesis as a job: what a daemon whose work is shared out cannot promise is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from generators.synthesis.job import JOB
from runtime.errors import UserError
from runtime.limits import Limits
from runtime.settings import Settings, load_settings
from tests.generators.synthesis.parts import count_task, write_tasks

ENDPOINT = ("chat.base_url=http://127.0.0.1:1/v1", "chat.model=any", "chat.budget_tokens=1000")
BUS = "daemon.bus=nats://127.0.0.1:4222"


def settings(tmp_path: Path, *sets: str) -> Settings:
    return load_settings(sets=[f"paths.state={tmp_path / 'state'}", *ENDPOINT, *sets])


def check(tmp_path: Path, *sets: str) -> None:
    tasks = write_tasks(tmp_path / "tasks", count=count_task())
    JOB.check(settings(tmp_path, *sets), {"tasks": str(tasks), "out": str(tmp_path / "out")})


def test_a_ceiling_over_calls_of_several_processes_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"chat\.budget_tokens: cannot be kept.*--here"):
        check(tmp_path, BUS, "synthesize.author=chat")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sets", [("synthesize.author=chat",), (BUS,)])
def test_without_a_bus_or_a_model_it_is_taken(tmp_path: Path, sets: tuple[str, ...]):
    check(tmp_path, *sets)


async def test_a_resumed_run_that_asks_a_model_is_refused_by_its_workers(tmp_path: Path):
    """Its author is what it began with, whatever the submission says."""
    recorded = settings(tmp_path, "synthesize.author=chat").synthesize.model_dump_json()
    engine: Any = None
    assert JOB.travel is not None
    with pytest.raises(UserError, match=r"chat\.budget_tokens: cannot be kept"):
        async with JOB.travel.worker(settings(tmp_path, BUS), "synthesize-1", recorded, engine, Limits({})):
            pass
