"""Running the real pipeline in tests: the daemonless engine, a store in a temporary directory, no screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from generators.outdir import RunPlace, place_of, prepare
from generators.run import run_generation
from generators.summary import Summary
from runtime.events import RunEvent
from runtime.settings import PathSettings, Settings, load_settings
from sandbox.engine import Engine
from sandbox.open import open_engine


@asynccontextmanager
async def namespace_engine(state: Path) -> AsyncIterator[Engine]:
    """An engine of the test's own; the base environment comes from the cache, or is made once."""
    async with open_engine("namespace", cache=PathSettings().cache, state=state, progress=lambda _: None) as engine:
        yield engine


def settings_for(tmp_path: Path, *sets: str) -> Settings:
    return load_settings(sets=[f"paths.state={tmp_path / 'state'}", *sets])


async def generate(settings: Settings, place: RunPlace, engine: Engine) -> Summary:
    """Run to the end; a fault or a retry fails the test at once with its cause."""

    def refuse_faults(event: RunEvent) -> None:
        if event.kind in ("fault", "retry"):
            raise AssertionError(f"{event.stage} {event.item}: {event.detail}")

    _, summary = await run_generation(settings, place, engine=engine, on_event=refuse_faults)
    return summary


def new_place(settings: Settings, out: Path) -> RunPlace:
    place = place_of(out, settings.paths.state)
    prepare(place, resume=False)
    return place


def rejections(summary: Summary) -> dict[str, dict[str, int]]:
    """Reasons by stage, without the stages that rejected nothing."""
    return {stage.stage: stage.rejected for stage in summary.stages if stage.rejected}


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
