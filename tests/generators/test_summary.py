"""The yield table counts every candidate once, at the stage where it ended."""

from __future__ import annotations

from generators.messages import Published
from generators.summary import summarise
from runtime.stage import Rejected
from tests.generators.parts import RUN, make_certified


def rejected(index: int, stage: str, reason: str) -> Rejected:
    return Rejected(item=f"0-{index:05d}", run_id=RUN, stage=stage, reason=reason)


def test_the_yield_goes_down_stage_by_stage() -> None:
    published = [
        Published(
            item=f"0-{index:05d}-publish",
            run_id=RUN,
            directory=f"d{index}",
            task_hash="",
            category="c",
            difficulty="easy",
            pass_rate=1.0,
        )
        for index in (4, 3)
    ]
    terminal = [
        rejected(0, "review", "review"),
        rejected(1, "solve", "unsolved"),
        rejected(2, "solve", "gave_up: no engine"),
        *(make_certified(index=index) for index in (3, 4, 5)),
        *published,
    ]
    summary = summarise(terminal, [rejected(5, "publish", "near_duplicate")], wanted=2)
    assert [task.directory for task in summary.tasks] == ["d3", "d4"]
    assert [(y.stage, y.taken, y.passed, y.rejected) for y in summary.stages] == [
        ("draft", 6, 6, {}),
        ("review", 6, 5, {"review": 1}),
        ("furnish", 5, 5, {}),
        ("examine", 5, 5, {}),
        ("solve", 5, 3, {"gave_up": 1, "unsolved": 1}),
        ("certify", 3, 3, {}),
        ("publish", 3, 2, {"near_duplicate": 1}),
    ]
