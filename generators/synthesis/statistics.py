"""What a set of synthesised trajectories holds, in numbers: a function of the trajectories, in any order.

A mistake counts as recovered when the episode it was made in ended with all tests passed: only then is it certain that
nothing of it was left. A natural error is a step that was meant to be correct and ended with another exit code than 0,
or not by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

import msgspec

from generators.messages import ErrorType
from runtime.chat.messages import estimate_tokens
from runtime.export import share_passed
from runtime.trajectory import Trajectory, Turn


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one kind."""

    made: int = 0
    recovered: int = 0
    recovery_rate: float | None = None
    """None: there was none."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers over all trajectories; means are over trajectories."""

    trajectories: int
    verified: int
    """With all tests passed."""
    share_verified: float
    mean_share_passed: float
    turns: int
    mean_turns: float
    tokens: int
    """Estimated, of whole conversations."""
    mean_tokens: float
    injected: dict[str, Errors]
    """By error type."""
    natural: Errors
    discarded: int
    """Mistakes that had no effect, or that the critic never accepted."""
    critic_rejections: int
    effects: dict[str, int]
    """What the injected mistakes changed."""
    endings: dict[str, int]


class _Count:
    def __init__(self) -> None:
        self.made = self.recovered = 0

    def add(self, made: int, *, recovered: bool) -> None:
        self.made += made
        self.recovered += made * recovered

    def errors(self) -> Errors:
        rate = round(self.recovered / self.made, 4) if self.made else None
        return Errors(made=self.made, recovered=self.recovered, recovery_rate=rate)


def statistics_of(trajectories: Iterable[Trajectory]) -> Statistics:
    """Sum up; one pass, nothing is kept."""
    injected = {error_type: _Count() for error_type in get_args(ErrorType)}
    natural, sums, shares = _Count(), Counter[str](), 0.0
    effects, endings = Counter[str](), Counter[str]()
    for trajectory in trajectories:
        verified = trajectory.verdict is not None and trajectory.verdict.passed
        sums.update(trajectories=1, verified=int(verified), turns=len(trajectory.turns), tokens=_tokens(trajectory))
        shares += share_passed(trajectory)
        endings[trajectory.failure] += 1
        natural.add(sum(map(_went_wrong, trajectory.turns)), recovered=verified)
        for turn in trajectory.turns:
            sums["discarded"] += turn.discarded
            sums["critic_rejections"] += sum(not verdict.accepted for verdict in turn.critic)
            if turn.intent == "error":
                injected[turn.error_type].add(1, recovered=verified)
                effects[turn.effect] += 1
    count = max(1, sums["trajectories"])
    return Statistics(
        trajectories=sums["trajectories"],
        verified=sums["verified"],
        share_verified=round(sums["verified"] / count, 4),
        mean_share_passed=round(shares / count, 4),
        turns=sums["turns"],
        mean_turns=round(sums["turns"] / count, 2),
        tokens=sums["tokens"],
        mean_tokens=round(sums["tokens"] / count, 1),
        injected={error_type: errors.errors() for error_type, errors in injected.items()},
        natural=natural.errors(),
        discarded=sums["discarded"],
        critic_rejections=sums["critic_rejections"],
        effects=dict(sorted(effects.items())),
        endings=dict(sorted(endings.items())),
    )


def _went_wrong(turn: Turn) -> bool:
    return turn.intent == "correct" and turn.action == "command" and turn.exit_code != 0


def _tokens(trajectory: Trajectory) -> int:
    opening = sum(estimate_tokens(message.content) for message in trajectory.opening)
    return opening + sum(estimate_tokens(t.text) + estimate_tokens(t.observation or "") for t in trajectory.turns)
