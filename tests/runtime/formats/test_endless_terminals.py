"""Endless Terminals' tasks: the truth goes nowhere, and everything comes back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from runtime.errors import TaskInvalid
from runtime.formats.endless_terminals import read, write
from runtime.formats.format import Imported, find
from runtime.task import read_task, write_task
from sandbox.spec import File
from tests.runtime.formats.samples import ENDLESS_TERMINALS, HARBOR, INSTRUCTION, TRUTH, write_files


def imported(tmp_path: Path, changes: dict[str, str] | None = None) -> Imported:
    return read(write_files(tmp_path / "one", ENDLESS_TERMINALS | (changes or {})))


def test_the_truth_is_in_nothing_that_an_agent_or_a_grader_sees(tmp_path: Path) -> None:
    task = imported(tmp_path).task
    assert task.instruction == INSTRUCTION
    context = task.context()
    shown = [context.dockerfile.encode(), *(f.data for f in (*context.files, *task.suite().files))]
    assert not any(b"marmalade-7" in data for data in (*shown, task.config.toml(), task.instruction.encode()))
    assert TRUTH in json.loads(task.text("origin/task.json") or "")["truth"]


def test_only_what_the_definition_copies_is_built_with(tmp_path: Path) -> None:
    task = imported(tmp_path, {"README.md": TRUTH}).task
    assert [file.path for file in task.context().files] == ["rows.txt"]
    assert task.text("origin/README.md") == TRUTH


def test_the_image_is_left_out_and_told(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "one", ENDLESS_TERMINALS)
    with (directory / "container.sif").open("wb") as image:
        image.truncate(1 << 30)
    assert read(directory).left_out == ("container.sif",)


def test_a_dockerfile_beside_the_definition_is_taken_as_it_is(tmp_path: Path) -> None:
    files = {"environment/Dockerfile": "FROM debian:12\n", "container.def": "Bootstrap: library\nFrom: x\n"}
    task = imported(tmp_path, files).task
    assert task.context().dockerfile == "FROM debian:12\n"
    written = {file.path: file.data.decode() for file in write(task, "one").files}
    assert written == ENDLESS_TERMINALS | files


def test_what_changed_shows_and_the_truth_stays(tmp_path: Path) -> None:
    task = imported(tmp_path).task
    dockerfile = File(path="environment/Dockerfile", data=b"FROM debian:12\nCOPY rows.txt /x\n")
    others = tuple(file for file in task.files if file.path != dockerfile.path)
    changed = dataclasses.replace(task, instruction="Other.\n", files=(*others, dockerfile))
    files = write(changed, "one").files
    described = json.loads((find(files, "task.json") or dockerfile).data)
    assert (described["description"], described["truth"], described["extra"]) == ("Other.\n", TRUTH, [1])
    definition = find(files, "container.def")
    assert definition is not None
    assert b"environment/rows.txt /.context/rows.txt" in definition.data
    assert find(files, "environment/Dockerfile") == dockerfile


def test_it_is_the_same_after_a_round_over_the_disk(tmp_path: Path) -> None:
    task = imported(tmp_path).task
    write_task(task, tmp_path / "two")
    assert read_task(tmp_path / "two") == task


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task.json": "{"}, "task.json: "),
        ({"task.json": '{"description": " ", "truth": ""}'}, "its description is empty"),
        ({"task.json": '{"truth": "x"}'}, "description: Field required"),
        ({"container.def": "Bootstrap: docker\nFrom: a\n%setup\ntrue\n"}, "its %setup runs commands on the host"),
        ({"container.def": "Bootstrap: docker\nFrom: a\n%files\ntask.json /x\n"}, "its %files copies task.json"),
        ({"tests/test.sh": "true\n"}, "writes no reward"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    with pytest.raises(TaskInvalid) as invalid:
        imported(tmp_path, changes)
    assert problem in str(invalid.value)


def test_a_task_without_both_test_modules_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid) as invalid:
        write(read_task(write_files(tmp_path / "t", HARBOR)), "t")
    assert len(invalid.value.problems) == 2
