"""The whole pipeline with procedural players: tasks that hold, the same ones every time, also after a kill."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from generators.outdir import MANIFEST
from generators.verify import verify_all
from tests.generators.running import generate, namespace_engine, new_place, run_and_kill, settings_for, termloom, tree

pytestmark = pytest.mark.namespace

SETS = ("generate.seed=5", "generate.levels=[1, 2]", "generate.attempts_least=2")
KILL_AFTER = (4, 9)
"""Stages done when the run is killed: first in the beginning, then, resumed, somewhere in the middle."""


async def test_certificates_hold_until_a_file_is_changed(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, *SETS, "generate.count=2")
    out = tmp_path / "out"
    async with namespace_engine(tmp_path / "engine") as engine:
        summary = await generate(settings, new_place(settings, out), engine)
        assert len(summary.tasks) == 2
        assert images(tmp_path) == []
        first, second = (out / task.directory for task in summary.tasks)
        assert await verify_all([out], engine=engine, settings=settings) == {
            path: [] for path in sorted((first, second))
        }
        assert images(tmp_path) == []
        solution = first / "solution" / "solve.sh"
        solution.write_text("#!/bin/bash\ntrue\n")
        (second / "instruction.md").unlink()
        found = await verify_all([first, second, tmp_path / "none"], engine=engine, settings=settings)
    assert found[first][0] == "solution/solve.sh was changed"
    assert any(problem.startswith("the reference failed in 2 of 2 runs") for problem in found[first])
    assert found[second] == ["instruction.md is missing"]
    assert found[tmp_path / "none"] == ["not a directory"]


def images(tmp_path: Path) -> list[Path]:
    """What the engine keeps of environments that were built."""
    return list((tmp_path / "engine" / "images").iterdir())


def command(tmp_path: Path, out: Path, *options: str) -> list[str]:
    sets = [f"paths.state={tmp_path / out.name}.state", *SETS, "generate.count=3"]
    settings = [part for one in sets for part in ("--set", one)]
    return termloom("generate", "--out", str(out), "--sandbox", "namespace", *settings, *options)


def leftovers(state: Path) -> list[str]:
    """Leases, images, mounts and processes of runs that have ended."""
    files = [str(path) for kind in ("sandboxes", "images", "mnt") for path in (state / kind).iterdir()]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(state) in line]
    commands = (read_or_empty(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    return files + mounts + [command for command in commands if str(state) in command]


def read_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
def test_a_run_that_was_killed_twice_ends_with_the_same_bytes(tmp_path: Path) -> None:
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    subprocess.run(command(tmp_path, quiet), check=True, capture_output=True, timeout=120)
    run_and_kill(command(tmp_path, killed, "--json"), after=KILL_AFTER[0])
    run_and_kill(command(tmp_path, killed, "--json", "--resume"), after=KILL_AFTER[1])

    again = subprocess.run(command(tmp_path, killed), check=False, capture_output=True, text=True, timeout=60)
    assert (again.returncode, "Use --resume" in again.stderr) == (2, True)
    subprocess.run(command(tmp_path, killed, "--resume"), check=True, capture_output=True, timeout=120)

    assert tree(killed) == tree(quiet)
    assert len(json.loads((quiet / MANIFEST).read_text())["tasks"]) == 3
    assert leftovers(tmp_path / "killed.state") == []
