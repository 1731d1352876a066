"""What a folder holds, found by listing and never by a name from an address; curves from files that may be cut off."""

from __future__ import annotations

import json

import pytest

from runtime.dashboard.charts import charts
from runtime.dashboard.library import MOST_POINTS, Library, text_of
from runtime.dashboard.shelves import turn_views
from runtime.errors import TrajectoryInvalid, UserError
from tests.runtime.dashboard.samples import trajectory, write


@pytest.fixture
def library(tmp_path) -> Library:
    write(tmp_path / "folder")
    (tmp_path / "secret.jsonl").write_text("hidden\n")
    (tmp_path / "folder" / "sft.jsonl").write_text('{"messages": []}\n')
    return Library(tmp_path / "folder")


def test_trajectory_files_are_told_from_other_lines(library):
    assert library.trajectory_files() == ["trajectories.jsonl"]
    lines = library.trajectories("trajectories.jsonl")
    assert [(line.turns, line.mistakes, line.reward) for line in lines[2:]] == [(4, 1, 1.0), (1, 0, None)]
    assert library.trajectory("trajectories.jsonl", 1) == trajectory(1)


@pytest.mark.parametrize("name", ["../secret.jsonl", "/etc/passwd", "..", "", "metrics.jsonl", "nothing.jsonl"])
def test_only_listed_files_are_read(library, name):
    with pytest.raises(UserError, match="has no file"):
        library.trajectories(name)
    with pytest.raises(UserError, match="has no task"):
        library.task(name)


def test_a_damaged_line_is_named(library):
    with (library.folder / "trajectories.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "traj\n')
    with pytest.raises(TrajectoryInvalid, match=r"trajectories\.jsonl:5"):
        library.trajectory("trajectories.jsonl", 4)


def test_one_file_is_a_library_too(library):
    alone = Library(library.folder / "trajectories.jsonl")
    assert alone.trajectory_files() == ["trajectories.jsonl"]
    assert alone.tasks() == []


def test_curves_run_over_steps_and_a_cut_off_line_is_left_out(library):
    with (library.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "rew')
    curves = {curve.name: curve for curve in library.curves()}
    assert set(curves) == {"reward", "policy_loss"}
    assert curves["reward"].unit == "steps"
    assert curves["reward"].points[0] == (0.0, 0.0)
    assert len(curves["reward"].points) == 60


def test_a_long_curve_is_thinned_out_and_keeps_its_end(tmp_path):
    rows = [json.dumps({"at": 100.0 + n, "solve": {"passed": n, "bad": float("nan")}}) for n in range(5000)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    (curve,) = Library(tmp_path).curves()
    assert curve.name == "solve.passed"
    assert len(curve.points) <= MOST_POINTS + 20
    assert curve.points[-1] == (4999.0, 4999.0)


def test_charts_of_two_runs_share_their_axes(library):
    drawn = charts([("a", library.curves()), ("b", library.curves()[:1])])
    assert [(chart.name, len(chart.lines)) for chart in drawn] == [("policy_loss", 2), ("reward", 1)]
    assert drawn[0].until == "59 steps"


def test_marks_follow_mistake_and_recovery():
    assert [view.mark for view in turn_views(trajectory(0))] == ["", "mistake", "recovery", ""]


def test_what_is_no_text_is_said_to_be_none():
    assert text_of(b"\x7fELF\0\0") == "(6 bytes, not text)"
    assert text_of(b"caf\xe9").startswith("caf")
