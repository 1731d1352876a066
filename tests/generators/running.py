"""Running the real pipeline in tests: the daemonless engine, a store in a temporary directory, no screen."""

from __future__ import annotations

import signal
import subprocess
import sys
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

_PROGRAM = "from runtime.cli import main; main()"
_DOOMED = """
import os, signal, sys
from runtime.cli import main

def write(text, show=sys.stdout.write):
    global left
    if '"kind":"done"' in text and '"stage":"{stage}' in text:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    return show(text)

left, sys.stdout.write = {after}, write
main()
"""


def termloom(*arguments: str) -> list[str]:
    """The program in a process of its own."""
    return [sys.executable, "-c", _PROGRAM, *arguments]


def run_and_kill(command: list[str], *, after: int, stage: str = "") -> None:
    """Run what `termloom` gave with `--json`; it kills itself when so many items are done with a stage, or with any."""
    python, option, _, *arguments = command
    doomed = [python, option, _DOOMED.format(stage=stage, after=after), *arguments]
    ended = subprocess.run(doomed, check=False, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


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
