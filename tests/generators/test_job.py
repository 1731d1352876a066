"""Generation as a job: what a daemon whose work is shared out cannot promise is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from generators.job import JOB
from generators.run import Begun
from runtime.errors import UserError
from runtime.limits import Limits
from runtime.settings import Settings, load_settings

BUS = "daemon.bus=nats://127.0.0.1:4222"
CHAT = ("generate.author=chat", "chat.base_url=http://127.0.0.1:1/v1", "chat.model=any")
BAND = ("generate.band=1/8..7/8", "generate.band_model=any", "band.base_url=http://127.0.0.1:1/v1")


def settings(tmp_path: Path, *sets: str) -> Settings:
    return load_settings(sets=[f"paths.state={tmp_path / 'state'}", *sets])


def check(tmp_path: Path, *sets: str) -> None:
    JOB.check(settings(tmp_path, *sets), {"out": str(tmp_path / "out")})


@pytest.mark.parametrize(
    ("asks", "ceiling"),
    [(CHAT, "chat.budget_tokens=1000"), (CHAT, "chat.budget_cost=2.5"), (BAND, "band.budget_tokens=1000")],
)
def test_a_ceiling_over_calls_of_several_processes_is_refused(tmp_path: Path, asks: tuple[str, ...], ceiling: str):
    name = ceiling.partition("=")[0]
    with pytest.raises(UserError, match=rf"{name}: cannot be kept.*--here"):
        check(tmp_path, BUS, *asks, ceiling)
    assert not (tmp_path / "out").exists()
    check(tmp_path, *asks, ceiling)


@pytest.mark.parametrize(
    "sets", [CHAT, BAND, ("chat.budget_tokens=1000", "band.budget_cost=1"), (*BAND, "chat.budget_tokens=1000")]
)
def test_a_job_that_spends_nothing_of_a_ceiling_elsewhere_is_taken(tmp_path: Path, sets: tuple[str, ...]):
    check(tmp_path, BUS, *sets)


async def test_a_resumed_run_that_asks_a_model_is_refused_by_its_workers(tmp_path: Path):
    """Its author is what it began with, whatever the submission says."""
    began = settings(tmp_path, *CHAT)
    recorded = Begun(generate=began.generate, agent=began.agent).model_dump_json()
    now = settings(tmp_path, BUS, "chat.base_url=http://127.0.0.1:1/v1", "chat.model=any", "chat.budget_tokens=9")
    engine: Any = None
    assert JOB.travel is not None
    with pytest.raises(UserError, match=r"chat\.budget_tokens: cannot be kept"):
        async with JOB.travel.worker(now, "generate-1", recorded, engine, Limits({})):
            pass
