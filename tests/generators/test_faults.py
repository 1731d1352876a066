"""Infrastructure at fault costs time and nothing else: the same tasks come out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from generators.run import run_generation
from runtime.events import Kind, RunEvent
from sandbox.engine import Engine, Sandbox
from sandbox.errors import EngineFault
from sandbox.spec import SandboxSpec
from tests.generators.running import generate, namespace_engine, new_place, rejections, settings_for, tree

pytestmark = pytest.mark.namespace


class FlakyEngine:
    """An engine whose first start fails, and every fifth after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._starts = engine, itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if next(self._starts) % 5 == 1:
            raise EngineFault("flaky", "create", "as arranged")
        return await self._engine.create(spec)


async def test_starts_that_fail_change_nothing_but_the_number_of_tries(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "generate.count=1", "generate.levels=[1]", "generate.attempts_least=1")
    events: list[RunEvent] = []
    async with namespace_engine(tmp_path / "engine") as engine:
        await generate(settings, new_place(settings, tmp_path / "sound"), engine)
        flaky: Any = FlakyEngine(engine)
        place = new_place(settings, tmp_path / "flaky")
        _, summary = await run_generation(settings, place, engine=flaky, on_event=events.append)
    assert any(event.kind is Kind.RETRY for event in events)
    assert rejections(summary) == {}
    assert tree(tmp_path / "flaky") == tree(tmp_path / "sound")
