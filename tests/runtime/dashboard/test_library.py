"""What a folder holds, found by listing and never by a name from an address; curves from files that may be cut off."""

from __future__ import annotations

import json

import pytest

from runtime.dashboard.census import census
from runtime.dashboard.charts import charts
from runtime.dashboard.library import MOST_POINTS, Curve, Library, text_of
from runtime.dashboard.shelves import turn_views
from runtime.errors import TrajectoryInvalid, UserError
from sandbox.owner import owner_token
from sandbox.spec import SandboxRecord
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
    assert [(chart.name, len(chart.lines)) for chart in drawn.first] == [("reward", 1), ("policy_loss", 2)]
    assert drawn.first[0].until == "59 steps"
    assert drawn.others == ()


def test_what_is_learnt_comes_first_and_a_curve_far_from_zero_keeps_its_shape():
    far = Curve(name="entropy", unit="steps", points=((1, 5.0), (2, 5.4)))
    drawn = charts([("a", [Curve(name="zeal", unit="steps", points=((1, 1.0), (2, 4.0))), far])])
    assert [chart.name for chart in drawn.first] == ["entropy"]
    assert [chart.name for chart in drawn.others] == ["zeal"]
    assert (drawn.first[0].low, drawn.others[0].low) == ("5", "0")


def test_trajectories_of_a_runs_evaluations_are_listed_too(library):
    write(library.folder / "evaluations" / "end")
    name = "evaluations/end/trajectories.jsonl"
    assert library.trajectory_files() == [name, "trajectories.jsonl"]
    assert library.trajectory(name, 0).task == "count-the-errors"
    with pytest.raises(UserError):
        library.trajectories("../folder/trajectories.jsonl")


def test_sandboxes_are_counted_by_purpose_engine_and_state():
    def record(name, purpose, owner, expires_at=200.0):
        return SandboxRecord(
            sandbox_id=name, engine="namespace", run_id="r", purpose=purpose, owner=owner,
            created_at=50.0, expires_at=expires_at,
        )  # fmt: skip

    dead = owner_token().rpartition(":")[0] + ":1"
    rows = census(
        [record("1", "solve 1/3", owner_token()), record("2", "solve 1/4", owner_token()), record("3", "a/0/1", dead),
         record("4", "solve 2", owner_token(), expires_at=60.0), record("5", "solve 3", "else:where:1")],
        now=100.0,
    )  # fmt: skip
    assert [(row.purpose, row.state, row.count) for row in rows] == [
        ("solve", "of this daemon", 2), ("episode", "left behind", 1), ("solve", "elsewhere", 1),
        ("solve", "past its lease", 1),
    ]  # fmt: skip


def test_marks_follow_mistake_and_recovery():
    assert [view.mark for view in turn_views(trajectory(0))] == ["", "mistake", "recovery", ""]


def test_what_is_no_text_is_said_to_be_none():
    assert text_of(b"\x7fELF\0\0") == "(6 bytes, not text)"
    assert text_of(b"caf\xe9").startswith("caf")
