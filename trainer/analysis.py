"""How episodes fail: the analysis of Endless Terminals (arXiv 2601.16443, section on failure modes), as pure functions
of trajectories.

Definitions, where the paper leaves them open:
- An *error* is a command that ended with another exit code than 0, or timed out.
- A *loop*: the agent loop ended the episode as one, or of its last six commands at most two differ.
- *Turn exhaustion*: the turn limit ended it. *Early wrong stop*: the agent said done, and the task was not. An episode
  can be a loop and exhausted; so the shares do not add up to 1.
- *Diversity after the first error*: different commands / commands after it, of episodes with at least two of them.
- *Recovery*: an episode with an error that passes all the same. The type is that of the injected mistake where one is
  recorded, else read off exit code and output of the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from runtime.trajectory import Trajectory, Turn
from sandbox.spec import FailureClass

WINDOW = 6
"""Commands at the end that are looked at for a loop."""
_MARKS = (
    ("permission", ("permission denied", "operation not permitted")),
    ("missing path", ("no such file or directory",)),
    ("usage", ("invalid option", "unrecognized option", "usage:", "syntax error")),
)


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes whose first error is of one type."""

    episodes: int
    recovered: int

    @property
    def rate(self) -> float:
        return self.recovered / self.episodes if self.episodes else 0.0


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of failed episodes; None where there is nothing to take a share or mean of."""

    episodes: int
    passed: int
    loops: float | None
    exhausted: float | None
    loops_and_exhausted: float | None
    wrong_stops: float | None
    malformed: float | None
    """Malformed answers a turn, over all episodes."""
    mean_turns: float | None
    diversity_passed: float | None
    diversity_failed: float | None
    diversity_loops: float | None
    recovery: dict[str, Recovery]
    """By type of the first error; `any` is all of them."""


def analyse(trajectories: Sequence[Trajectory]) -> Analysis:
    """Count. Every trajectory must have a reward."""
    passed = [t for t in trajectories if _passed(t)]
    failed = [t for t in trajectories if not _passed(t)]
    turns = [turn for t in trajectories for turn in t.turns]
    return Analysis(
        episodes=len(trajectories),
        passed=len(passed),
        loops=_share(failed, is_loop),
        exhausted=_share(failed, is_exhausted),
        loops_and_exhausted=_share(failed, lambda t: is_loop(t) and is_exhausted(t)),
        wrong_stops=_share(failed, is_wrong_stop),
        malformed=_mean([float(turn.action == "malformed") for turn in turns]),
        mean_turns=_mean([float(len(t.turns)) for t in trajectories]),
        diversity_passed=_mean_diversity(passed),
        diversity_failed=_mean_diversity(failed),
        diversity_loops=_mean_diversity(filter(is_loop, failed)),
        recovery=_recovery(trajectories),
    )


def is_loop(trajectory: Trajectory) -> bool:
    last = [turn.command for turn in _commands(trajectory)][-WINDOW:]
    return trajectory.failure is FailureClass.LOOP or (len(last) == WINDOW and len(set(last)) <= 2)


def is_exhausted(trajectory: Trajectory) -> bool:
    return trajectory.failure is FailureClass.TURN_LIMIT


def is_wrong_stop(trajectory: Trajectory) -> bool:
    return not _passed(trajectory) and bool(trajectory.turns) and trajectory.turns[-1].action == "done"


def is_error(turn: Turn) -> bool:
    return turn.action == "command" and (turn.timed_out or turn.exit_code not in (0, None))


def first_error(trajectory: Trajectory) -> int | None:
    """Position of the first error among the turns."""
    return next((i for i, turn in enumerate(trajectory.turns) if is_error(turn)), None)


def diversity_after_error(trajectory: Trajectory) -> float | None:
    """Different commands / commands after the first error; None with fewer than two of them."""
    at = first_error(trajectory)
    after = [turn.command for turn in trajectory.turns[at + 1 :] if turn.action == "command"] if at is not None else []
    return len(set(after)) / len(after) if len(after) > 1 else None


def error_type(turn: Turn) -> str:
    """The recorded type of an injected mistake, else one read off its result."""
    if turn.error_type:
        return turn.error_type
    if turn.timed_out:
        return "time-out"
    if turn.exit_code == 127:
        return "command not found"
    shown = (turn.observation or "").lower()
    return next((name for name, marks in _MARKS if any(mark in shown for mark in marks)), "other")


def _recovery(trajectories: Sequence[Trajectory]) -> dict[str, Recovery]:
    outcomes: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        at = first_error(trajectory)
        if at is not None:
            for name in ("any", error_type(trajectory.turns[at])):
                outcomes.setdefault(name, []).append(_passed(trajectory))
    return {name: Recovery(episodes=len(got), recovered=sum(got)) for name, got in sorted(outcomes.items())}


def _commands(trajectory: Trajectory) -> list[Turn]:
    """Turns that ran something; an agent that types may also only have waited."""
    return [turn for turn in trajectory.turns if turn.action == "command" and turn.command]


def _passed(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.reward >= 1.0


def _share(trajectories: Sequence[Trajectory], holds: Callable[[Trajectory], bool]) -> float | None:
    return _mean([float(holds(trajectory)) for trajectory in trajectories])


def _mean_diversity(trajectories: Iterable[Trajectory]) -> float | None:
    return _mean([value for value in map(diversity_after_error, trajectories) if value is not None])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
