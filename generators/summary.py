"""What became of a run: the tasks, and the yield of each stage with the reasons for rejection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from generators.messages import Published
from generators.stages import STAGES
from runtime.stage import Message, Rejected


class StageYield(msgspec.Struct, frozen=True, kw_only=True):
    """How many items a stage was given, how many it carried on, and why it did not carry on the others."""

    stage: str
    taken: int
    passed: int
    rejected: dict[str, int]
    """Count by reason class, sorted."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run: a function of its terminal messages, in any order."""

    wanted: int
    """How many tasks were asked for."""
    tasks: tuple[Published, ...]
    """By index."""
    stages: tuple[StageYield, ...]


def summarise(terminal: Iterable[Message], screened: Sequence[Rejected], *, wanted: int) -> Summary:
    """Sum up; `screened` are the certified candidates that the source did not take."""
    published: list[Published] = []
    rejections: list[Rejected] = list(screened)
    candidates = 0
    for message in terminal:
        if isinstance(message, Published):
            published.append(message)
            continue
        if isinstance(message, Rejected):
            rejections.append(message)
        candidates += not message.item.endswith("-publish")
    return Summary(
        wanted=wanted,
        tasks=tuple(sorted(published, key=lambda task: task.item)),
        stages=_yields(candidates, rejections),
    )


def _yields(candidates: int, rejections: Sequence[Rejected]) -> tuple[StageYield, ...]:
    yields, left = list[StageYield](), candidates
    for stage in STAGES:
        reasons = Counter(r.reason.partition(":")[0] for r in rejections if r.stage == stage.name)
        passed = left - reasons.total()
        yields.append(StageYield(stage=stage.name, taken=left, passed=passed, rejected=dict(sorted(reasons.items()))))
        left = passed
    return tuple(yields)
