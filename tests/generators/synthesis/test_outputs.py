"""The output directory: whole lines, each trajectory once, no trace of the order of finishing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generators.synthesis.outputs import Shelf
from runtime.settings import ExportSettings
from tests.generators.running import tree
from tests.generators.synthesis.parts import trajectory


def names(shelf: Shelf) -> list[str]:
    return [one.trajectory_id for one in shelf.trajectories()]


def test_the_order_of_finishing_leaves_no_trace(tmp_path: Path) -> None:
    for place, order in (("one", "abc"), ("other", "cab")):
        shelf = Shelf(tmp_path / place)
        for name in order:
            shelf.add(trajectory(name))
        shelf.finish(ExportSettings())
    assert tree(tmp_path / "one") == tree(tmp_path / "other")
    assert len(tree(tmp_path / "one")) == 6


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path, cut: int) -> None:
    first = Shelf(tmp_path)
    for name in "ba":
        first.add(trajectory(name))
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    second = Shelf(tmp_path)
    assert names(second) == ["b"]
    for name in "ab":
        second.add(trajectory(name))
    assert names(second) == ["a", "b"]
    assert [json.loads(line)["trajectory_id"] for line in path.read_bytes().splitlines()] == ["b", "a"]


def test_what_is_exported_again_follows_the_threshold(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.add(trajectory("whole"))
    shelf.add(trajectory("half", passed=1))

    def exported(tau: float) -> list[str]:
        Shelf(tmp_path).finish(ExportSettings(tau=tau))
        return [json.loads(line)["id"] for line in (tmp_path / "sft.jsonl").read_text().splitlines()]

    assert (exported(0.0), exported(0.5), exported(1.0)) == (["half", "whole"], ["half", "whole"], ["whole"])
    assert json.loads((tmp_path / "statistics.json").read_text())["trajectories"] == 2


def test_after_the_end_trajectories_are_found_in_their_new_places(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name in ("long" * 50, "a", "b"):
        shelf.add(trajectory(name))
    shelf.finish(ExportSettings())
    shelf.add(trajectory("c"))
    assert names(shelf) == names(Shelf(tmp_path)) == ["a", "b", "c", "long" * 50]
