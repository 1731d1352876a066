"""Terminal-Bench 1 tasks: nothing is lost on the way in, and what changed shows on the way out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from runtime.errors import TaskInvalid
from runtime.formats.format import Exported, find
from runtime.formats.terminal_bench import read, write
from runtime.formats.yaml_text import load_mapping
from runtime.task import Task, TaskConfig, read_task, write_task
from tests.runtime.formats.samples import COMPOSE, HARBOR, RUN_TESTS, SOLUTION_YAML, TERMINAL_BENCH, write_files


def imported(tmp_path: Path, changes: dict[str, str] | None = None) -> Task:
    return read(write_files(tmp_path / "one", TERMINAL_BENCH | (changes or {}))).task


def text_of(exported: Exported, path: str) -> str:
    file = find(exported.files, path)
    assert file is not None, path
    return file.data.decode()


def test_instruction_limits_and_unknown_keys_have_their_place(tmp_path: Path) -> None:
    task = imported(tmp_path)
    assert task.instruction.endswith("count.txt beside it.")
    assert (task.config.agent.timeout_sec, task.config.verifier.timeout_sec) == (60.0, 45.0)
    assert task.config.task.name == "terminal-bench/one"
    assert {"author_name", "difficulty", "made_on", "parser_name", "expert_time_estimate_min"} <= set(
        task.config.metadata
    )
    assert "author_email" not in task.config.metadata  # TOML has no null
    assert task.suite().mode == "harbor"


def test_neither_tests_nor_solution_are_in_the_build_context(tmp_path: Path) -> None:
    context = imported(tmp_path).context()
    assert [file.path for file in context.files] == ["rows.txt"]


def test_it_is_the_same_after_a_round_over_the_disk(tmp_path: Path) -> None:
    task = imported(tmp_path)
    write_task(task, tmp_path / "two")
    assert read_task(tmp_path / "two") == task


def test_a_changed_instruction_is_written_and_everything_else_kept(tmp_path: Path) -> None:
    changed = dataclasses.replace(imported(tmp_path), instruction="Do it\nproperly: now.\n")
    before, after = (load_mapping(text.encode()) for text in (TERMINAL_BENCH["task.yaml"], _task_yaml(changed)))
    assert after.pop("instruction") == "Do it\nproperly: now.\n"
    del before["instruction"]
    assert after == before


def _task_yaml(task: Task) -> str:
    return text_of(write(task, "one"), "task.yaml")


def test_a_list_of_commands_is_a_solution(tmp_path: Path) -> None:
    files = {path: text for path, text in TERMINAL_BENCH.items() if path != "solution.sh"}
    task = read(write_files(tmp_path / "t", files | {"solution.yaml": SOLUTION_YAML})).task
    assert task.text("solution/solve.sh") == "#!/bin/bash\ncd /home/agent\nwc -l < rows.txt > count.txt\n"
    exported = write(task, "t")
    assert find(exported.files, "solution.sh") is None
    assert text_of(exported, "solution.yaml") == SOLUTION_YAML


def test_the_older_descriptions_are_instructions(tmp_path: Path) -> None:
    yaml = "descriptions:\n  - {key: hard, description: Guess.}\n  - {key: base, description: Count.}\n"
    assert imported(tmp_path, {"task.yaml": yaml}).instruction == "Count."


def test_variables_of_the_container_are_kept_and_those_of_the_harness_are_not(tmp_path: Path) -> None:
    compose = COMPOSE.replace("      - TEST_DIR", "      - MODE=plain $5\n      - TEST_DIR")
    task = imported(tmp_path, {"docker-compose.yaml": compose})
    assert task.config.environment.env == {"MODE": "plain $5"}
    assert 'ENV MODE="plain \\$5"\n' in task.context().dockerfile


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task.yaml": "instruction: ''\n"}, "it has no instruction"),
        ({"task.yaml": "- a\n"}, "not a mapping"),
        ({"task.yaml": "a: &x [1]\nb: *x\n"}, "aliases"),
        ({"task.yaml": "a: !!python/object/apply:os.system [id]\n"}, "could not determine a constructor"),
        ({"task.yaml": "[" * 20_000 + "]" * 20_000}, "nested more than 50 deep"),
        ({"task.yaml": "instruction: x\nhard: !!bool maybe\n"}, "not of the type in its tag"),
        ({"task.yaml": "instruction: x\nmax_agent_timeout_sec: -1\n"}, "max_agent_timeout_sec"),
        ({"tests/test.sh": "true\n"}, "writes no reward"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    with pytest.raises(TaskInvalid) as invalid:
        imported(tmp_path, changes)
    assert problem in str(invalid.value)


def test_all_missing_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskInvalid) as invalid:
        read(tmp_path / "empty")
    assert len(invalid.value.problems) == 4


def test_a_harbor_task_without_pytest_cannot_be_told(tmp_path: Path) -> None:
    task = read_task(write_files(tmp_path / "t", HARBOR))
    with pytest.raises(TaskInvalid, match=r"its verdict comes from tests/test\.sh alone"):
        write(task, "t")


def test_a_harbor_task_with_pytest_brings_its_variables_and_directory(tmp_path: Path) -> None:
    task = read_task(write_files(tmp_path / "t", HARBOR | {"tests/test_outputs.py": "def test_x(): pass\n"}))
    config = TaskConfig.model_validate(
        task.config.model_dump() | {"environment": {"workdir": "/srv", "env": {"GREETING": "hi"}}}
    )
    exported = write(dataclasses.replace(task, config=config), "t")
    assert text_of(exported, "Dockerfile").endswith('ENV GREETING="hi"\nWORKDIR /srv\n')
    assert "test_outputs.py" in text_of(exported, "run-tests.sh") != RUN_TESTS
    assert exported.left_out == ("notes/why.md",)
    assert load_mapping(text_of(exported, "task.yaml").encode())["author_name"] == "A. Person"


def test_a_file_with_a_meaning_of_its_own_there_is_refused(tmp_path: Path) -> None:
    files = HARBOR | {"tests/test_outputs.py": "", "environment/task.yaml": "x", "environment/tests/t.py": ""}
    with pytest.raises(TaskInvalid) as invalid:
        write(read_task(write_files(tmp_path / "t", files)), "t")
    assert len(invalid.value.problems) == 2
