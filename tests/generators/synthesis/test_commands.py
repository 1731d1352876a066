"""The command from outside: what it refuses, and how it tells its outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generators.outdir import place_of
from generators.synthesis.report import show_outcome
from generators.synthesis.run import COMMAND, Outcome
from generators.synthesis.statistics import statistics_of
from runtime.cli import run
from runtime.runner import RunResult
from tests.generators.synthesis.parts import count_task, trajectory, turn, write_tasks


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tasks", "/no/such/folder"], "holds no task directory"),
        (["--author", "chat"], "chat.base_url: is not set. Give --base-url"),
        (["--error-rate", "1.5"], "less than or equal to 1"),
        (["--tau", "-1"], "greater than or equal to 0"),
        (["--set", "synthesize.error_weights.typo=1"], "unknown setting 'synthesize.error_weights.typo'"),
        (["--resume"], "no run that could be resumed"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_begun(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    out = tmp_path / "out"
    where = [] if "--tasks" in options else ["--tasks", str(write_tasks(tmp_path / "tasks", count=count_task()))]
    assert run(["synthesize", *where, "--out", str(out), *options]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()
    assert not state.exists()


def outcome(state: str = "finished", wanted: int = 1) -> Outcome:
    planted = turn(1, "x", intent="error", error_type="hallucination", effect="files")
    return Outcome(
        result=RunResult(state=state, admitted=wanted, terminal=1, pending=wanted - 1, reason="asked to"),
        statistics=statistics_of([trajectory("a", planted)]),
        wanted=wanted,
        rejected={"build_failed": 1} if wanted > 1 else {},
    )


def test_the_table_tells_the_recovery_rate_of_each_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_outcome(outcome(), place_of(tmp_path / "out", tmp_path, COMMAND), as_json=False) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hallucination", "1", "1", "100%"] in rows
    assert ["command", "error", "0", "0"] in rows
    assert ["verified", "100.0%"] in rows


def test_missing_trajectories_are_a_failure_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = place_of(tmp_path / "out", tmp_path, COMMAND)
    assert show_outcome(outcome("drained", 2), place, as_json=False) == 1
    told = capsys.readouterr().out
    assert "rejected: 1 build_failed" in told
    assert f"go on with --resume --out {place.out}" in told


def test_the_outcome_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_outcome(outcome(), place_of(tmp_path / "out", tmp_path, COMMAND), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "result"
    assert told["statistics"]["injected"]["hallucination"] == {"made": 1, "recovered": 1, "recovery_rate": 1.0}
