"""Two evaluations side by side, paired by task.

Unlike runs are refused: a difference in tasks, limits or versions would be taken for one in the policies. What may
differ is the policy (and the seed); what is compared is the pass rate of each task in both.
"""

from __future__ import annotations

import msgspec

from trainer.evaluate import Evaluation, TaskResult, bootstrap, rate


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Second against first, over the tasks that both graded; with none of those there is no number."""

    tasks: int
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    """95 % interval of the difference, by a bootstrap over tasks."""
    better: tuple[str, ...]
    """Tasks that the second passes more often."""
    worse: tuple[str, ...]

    @property
    def decided(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def differences(first: Evaluation, second: Evaluation) -> list[str]:
    """Why the two cannot be compared; empty when they can."""
    found = [
        f"{name} is {a!r} in the first and {b!r} in the second"
        for name, a, b in (
            ("attempts", first.attempts, second.attempts),
            ("engine", first.engine, second.engine),
            ("prompt_version", first.prompt_version, second.prompt_version),
            ("agent_version", first.agent_version, second.agent_version),
            *(
                (f"settings.{key}", first.settings.get(key), second.settings.get(key))
                for key in sorted(first.settings.keys() | second.settings.keys())
            ),
        )
        if a != b
    ]
    found += _unlike_overflow(first.context_overflow, second.context_overflow)
    ours, theirs = ({task.name: (task.hash, task.limits) for task in e.tasks} for e in (first, second))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            found.append(f"task '{name}' is only in the {'second' if name not in ours else 'first'}")
        elif ours[name] != theirs[name]:
            found.append(f"task '{name}' has other content or limits")
    return found


def _unlike_overflow(first: str, second: str) -> list[str]:
    """Results of earlier programs do not say what became of a full context."""
    if not first or not second or first == second:
        return []
    return [f"context_overflow is {first!r} in the first and {second!r} in the second"]


def compare_evaluations(first: Evaluation, second: Evaluation, *, resamples: int = 2000, seed: int = 0) -> Comparison:
    """Compare over the tasks that have a graded attempt in both. Deterministic in (evaluations, seed)."""
    theirs = {task.name: task for task in second.tasks if task.graded}
    pairs = [(task, theirs[task.name]) for task in first.tasks if task.graded and task.name in theirs]
    gains = {a.name: _pass_rate(b) - _pass_rate(a) for a, b in pairs}
    low, high = bootstrap(list(gains.values()), resamples=resamples, seed=seed) if gains else (None, None)
    return Comparison(
        tasks=len(pairs),
        first=rate([a for a, _ in pairs], 1, resamples=1).value,
        second=rate([b for _, b in pairs], 1, resamples=1).value,
        difference=sum(gains.values()) / len(gains) if gains else None,
        low=low,
        high=high,
        better=tuple(sorted(name for name, gain in gains.items() if gain > 0)),
        worse=tuple(sorted(name for name, gain in gains.items() if gain < 0)),
    )


def _pass_rate(task: TaskResult) -> float:
    return task.passed / task.graded
