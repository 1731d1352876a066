"""The commands from outside: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli import run
from tests.runtime.formats.samples import ENDLESS_TERMINALS, HARBOR, TASK_TOML, TERMINAL_BENCH, tree, write_files


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Tasks of three formats: one that cannot be run without Docker, one that cannot be read."""
    folder = tmp_path / "mixed"
    write_files(folder / "deep" / "harbor", HARBOR)
    write_files(folder / "bench", TERMINAL_BENCH | {"Dockerfile": "FROM ubuntu:24.04\n"})
    write_files(folder / "endless", ENDLESS_TERMINALS | {"task.json": "[]"})
    return folder


def test_each_task_is_told_with_the_reason_that_stands_against_it(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(mixed), "--out", str(tmp_path / "out"), "--sandbox", "namespace"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "bench terminal-bench no, because the namespace engine cannot build FROM ubuntu:24.04" in shown
    assert "endless endless-terminals not imported, because task.json" in shown
    assert "harbor harbor yes" in shown
    assert "2 of 3 tasks imported, 1 of them cannot be run here" in shown
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bench", "harbor"]


def test_brackets_in_names_and_reasons_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "set" / "a", TERMINAL_BENCH | {"Dockerfile": "FROM ubuntu[/x]\n"})
    write_files(tmp_path / "set" / "b[red]", HARBOR | {"task.toml": TASK_TOML + "[[steps]]\nname = 'one'\n"})
    assert run(["import", str(tmp_path / "set"), "--out", str(tmp_path / "out"), "--sandbox", "namespace"]) == 1
    shown = capsys.readouterr().out
    assert "FROM ubuntu[/x]" in shown
    assert "b[red]" in shown
    assert "[[steps]]" in shown


def test_for_programs_and_only_of_the_kind_that_was_named(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--from", "terminal-bench", "--sandbox", "namespace", "--json"]
    assert run(["import", str(mixed), "--out", str(tmp_path / "out"), *options]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (task["runnable"], task["refused"], task["directory"]) == (False, [], str(tmp_path / "out" / "bench"))
    assert task["because"][0].startswith("the namespace engine cannot build FROM ubuntu:24.04")


def test_nothing_that_exists_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_files(tmp_path / "one", HARBOR)
    assert run(["export", str(source), "--to", "harbor", "--out", str(tmp_path / "out")]) == 0
    before = tree(tmp_path / "out")
    (source / "instruction.md").write_text("Other.\n")
    assert run(["export", str(source), "--to", "harbor", "--out", str(tmp_path / "out")]) == 1
    assert tree(tmp_path / "out") == before
    assert "exists" in capsys.readouterr().out


def test_a_folder_without_tasks_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", str(tmp_path), "--out", str(tmp_path / "out"), "--sandbox", "namespace"]) == 2
    assert "no task is in it (none of task.toml, task.yaml, task.json)" in capsys.readouterr().err
    assert run(["export", "--out", str(tmp_path / "out"), "--to", "harbor"]) == 2
    assert "no directory is named" in capsys.readouterr().err
