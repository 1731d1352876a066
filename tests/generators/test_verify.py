"""A directory that is not what was certified is told, whatever it lacks; the other tasks are still checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from generators.assemble import SOLUTION
from generators.handling import UnfitError
from generators.proof import Prover
from generators.verify import verify_all
from runtime.settings import Settings
from runtime.task import write_task
from tests.generators.test_certificate import certified_task


async def test_a_task_whose_solution_was_deleted_is_told_and_not_tried(tmp_path: Path) -> None:
    task, _ = certified_task()
    write_task(task, tmp_path / "t")
    (tmp_path / "t" / SOLUTION).unlink()
    no_engine: Any = None
    assert await verify_all([tmp_path / "t"], engine=no_engine, settings=Settings()) == {
        tmp_path / "t": [f"{SOLUTION} is missing"]
    }


async def test_a_script_that_is_not_there_is_no_bug() -> None:
    task, _ = certified_task()
    without = dataclasses.replace(task, files=tuple(file for file in task.files if file.path != SOLUTION))
    no_bench: Any = None
    with pytest.raises(UnfitError, match=f"there is no {SOLUTION}"):
        await Prover(no_bench, "image", without, command_timeout_s=1.0).script()
