"""`report.html`: one page that shows what a run did. Learning curve, pass rates, failure analysis, episodes to read.

Invariants:
- Everything that came from a model, a task or a sandbox is escaped; the page runs no script and loads nothing.
- The page is a function of the run's files: it can be made again at any time, also of a run that is not finished.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runtime.trajectory import Trajectory
from trainer.analysis import Analysis
from trainer.compare import compare_evaluations
from trainer.evaluate import RESULT, Evaluation, missing, percent, rate, read_evaluation, read_trajectories
from trainer.metrics import read_metrics

REPORT = "report.html"
SHOWN_EPISODES = 4
"""Tasks whose episodes are shown, before and after."""
_LONGEST = 4000
"""Characters of one answer or observation."""
_HELD_OUT = "held_out_pass_rate"
_CURVES = (
    ("reward", "mean reward of the batch"),
    (_HELD_OUT, "pass rate on held-out tasks, 95 % interval"),
    ("entropy", "entropy, nats a token"),
    ("approx_kl", "approximate KL of an update"),
    ("clipfrac", "share of clipped tokens"),
    ("explained_variance", "explained variance of the critic"),
    ("behaviour_gap", "behaviour to learner, nats a token"),
    ("staleness_mean", "mean staleness, versions"),
    ("tokens_per_s", "tokens a second"),
    ("wait_s", "seconds waiting for rollouts"),
)
_SHARES = frozenset({"reward", _HELD_OUT, "clipfrac", "staleness_mean", "tokens_per_s", "wait_s"})
"""Curves whose axis begins at 0: a small change must not look like a large one."""
_COUNTS = {
    "episodes_groups": "groups admitted",
    "episodes_admitted": "admitted",
    "episodes_trained": "trained on",
    "episodes_dropped": "dropped: too old when they were taken",
    "episodes_failed": "without a reward",
}
_NOTHING = "\u2013"
_ORDER = {"start": 0, "before_ppo": 1, "end": 3}
_TITLES = {"start": "at the start", "before_ppo": "before PPO", "end": "at the end"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } th, td { padding: .25rem .8rem; border-bottom: 1px solid #eee; text-align: right; }
th:first-child, td:first-child { text-align: left; } img { max-width: 100%; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .pair > div { min-width: 0; }
pre { background: #f6f6f4; padding: .5rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0; }
pre.seen { background: #fff; border-left: 3px solid #ccc; color: #555; }
.about { color: #555; } .result { font-size: 1.15rem; }
.passed { color: #18794e; } .failed { color: #b42318; }
"""


def write_report(run: Path) -> Path:
    """Make the report of a training run's directory, or of one evaluation's. Raises: OSError, UserError."""
    evaluations = _evaluations(run)
    metrics = read_metrics(run / "metrics.jsonl")
    title, about = _about(run, evaluations)
    parts = [
        f"<h1>{escape(title)}</h1><p class=about>{escape(about)}</p>",
        _result(evaluations),
        _rates(evaluations),
        _curves(metrics, evaluations),
        _analyses(evaluations),
        _episodes(run, evaluations),
    ]
    page = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>" + "".join(parts)
    fresh = run / f".{REPORT}.partial"
    fresh.write_text(page, encoding="utf-8")
    fresh.rename(run / REPORT)
    return run / REPORT


def _evaluations(run: Path) -> dict[str, Evaluation]:
    """By name, in the order of the run."""
    if (run / RESULT).exists():
        return {"evaluation": read_evaluation(run)}
    found = {path.parent.name: read_evaluation(path) for path in run.glob(f"evaluations/*/{RESULT}")}
    return dict(sorted(found.items(), key=lambda item: (_ORDER.get(item[0], 2), item[0])))


def _about(run: Path, evaluations: Mapping[str, Evaluation]) -> tuple[str, str]:
    """What was run: the recipe's name, or the directory's; and one line on it."""
    path = run / "recipe.json"
    if path.is_file():
        recipe = json.loads(path.read_text(encoding="utf-8"))
        about = (recipe.get("description"), f"model {recipe['model']['name']}", f"seed {recipe.get('seed')}")
        return str(recipe["name"]), "; ".join(str(part) for part in about if part)
    if not evaluations:
        return run.name, ""
    last = list(evaluations.values())[-1]
    agent = f"agent {last.settings.get('kind', 'minimal')}, {last.settings.get('max_turns')} turns at most"
    served = f", served by {last.served_by}" if last.served_by else ""
    return (
        f"Evaluation in {run.name}",
        f"model {last.model or 'unknown'}{served}; {agent}; {last.engine} sandboxes; seed {last.seed}",
    )


def _result(evaluations: Mapping[str, Evaluation]) -> str:
    """The run in one sentence: the last evaluation against the first that graded enough of the same tasks."""
    if not evaluations:
        return ""
    last = list(evaluations)[-1]
    enough = sum(task.graded > 0 for task in evaluations[last].tasks) / 2
    pairs = ((name, compare_evaluations(e, evaluations[last])) for name, e in evaluations.items() if name != last)
    first, got = next(((name, got) for name, got in pairs if got.tasks and got.tasks >= enough), ("", None))
    if got is None:
        return ""
    told = "" if got.decided else "; the interval holds 0: no difference can be told"
    low, high = percent(got.low, "+.1%"), percent(got.high, "+.1%")
    gain = f"{percent(got.difference, '+.1%')} (95 % interval {low} to {high}) over {got.tasks} tasks"
    return (
        f"<p class=result>pass@1 {percent(got.first)} {escape(_title(first))}, <b>{percent(got.second)}</b>"
        f" {escape(_title(last))}: {gain} that both graded{told}.</p>"
    )


def _rates(evaluations: Mapping[str, Evaluation]) -> str:
    if not evaluations:
        return "<p>There is no evaluation.</p>"
    rows = []
    for name, evaluation in evaluations.items():
        one = rate(evaluation.tasks, 1, seed=evaluation.seed)
        most = rate(evaluation.tasks, evaluation.attempts, seed=evaluation.seed)
        apart = ", ".join(f"{count} {reason}" for reason, count in sorted(missing(evaluation).items()))
        rows.append(
            (
                _title(name),
                one.shown(),
                f"{most.shown()} (k={most.k})" if most.k > 1 else _NOTHING,
                str(one.tasks),
                str(sum(task.graded for task in evaluation.tasks)),
                apart or "none",
            )
        )
    head = ("evaluation", "pass@1, 95 % interval", "pass@k", "tasks", "graded attempts", "without a verdict")
    return "<h2>Pass rates</h2>" + _table(head, rows)


def _curves(metrics: Sequence[Mapping[str, Any]], evaluations: Mapping[str, Evaluation]) -> str:
    if not metrics:
        return ""
    try:
        image = _plot(metrics, _measured(evaluations, last=metrics[-1]["step"]))
    except ImportError:
        return "<h2>Training</h2><p>Install the extra 'plots' for curves.</p>"
    last = metrics[-1]
    counts = [(_count_title(name), f"{last[name]:g}") for name in _COUNTS if name in last]
    counts += [(_count_title(n), f"{last[n]:g}") for n in sorted(last) if n.startswith("episodes_failed/")]
    return (
        f'<h2>Training</h2><img alt="curves of the training" src="data:image/png;base64,{image}">'
        f"<h3>Episodes</h3>{_table(('what became of them', 'episodes'), counts)}"
    )


def _count_title(name: str) -> str:
    return _COUNTS.get(name) or f"{_COUNTS['episodes_failed']}: {name.partition('/')[2]}"


def _measured(evaluations: Mapping[str, Evaluation], *, last: int) -> list[tuple[int, float, float, float]]:
    """Update, pass rate and its interval of what was measured in the course of PPO: no point where nothing was."""
    at = {"before_ppo": 0, "end": last}
    at |= {name: int(name.removeprefix("step-")) for name in evaluations if name.startswith("step-")}
    rates = {at[name]: rate(e.tasks, 1, seed=e.seed) for name, e in evaluations.items() if name in at}
    return [
        (step, got.value, got.low, got.high)
        for step, got in sorted(rates.items())
        if got.value is not None and got.low is not None and got.high is not None
    ]


def _plot(metrics: Sequence[Mapping[str, Any]], measured: Sequence[tuple[int, float, float, float]]) -> str:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curves = {name: [(line["step"], line[name]) for line in metrics if name in line] for name, _ in _CURVES}
    curves[_HELD_OUT] = [(step, value) for step, value, _, _ in measured]
    shown = [(name, title) for name, title in _CURVES if curves[name]]
    rows = -(-len(shown) // 2)
    figure = Figure(figsize=(11, 2.6 * rows), layout="constrained")
    for place, (name, title) in enumerate(shown, start=1):
        axes = figure.add_subplot(rows, 2, place)
        points = curves[name]
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 60 else "", linewidth=1.2)
        if name == _HELD_OUT:
            steps, _, low, high = zip(*measured, strict=True)
            axes.vlines(steps, low, high, alpha=0.5)
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if name in _SHARES:
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    buffer = io.BytesIO()
    figure.supxlabel("update", fontsize=9)
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def _analyses(evaluations: Mapping[str, Evaluation]) -> str:
    if not evaluations:
        return ""
    columns: list[tuple[str, Callable[[Analysis], str]]] = [
        ("episodes", lambda a: str(a.episodes)),
        ("passed", lambda a: str(a.passed)),
        ("failed by a loop", lambda a: _percent(a.loops)),
        ("failed, turns exhausted", lambda a: _percent(a.exhausted)),
        ("failed by a loop that exhausted the turns", lambda a: _percent(a.loops_and_exhausted)),
        ("failed by an early wrong stop", lambda a: _percent(a.wrong_stops)),
        ("malformed answers, of all", lambda a: _percent(a.malformed)),
        ("turns an episode", lambda a: _number(a.mean_turns)),
        ("diversity after the first error: passed", lambda a: _number(a.diversity_passed)),
        ("diversity after the first error: failed", lambda a: _number(a.diversity_failed)),
        ("diversity after the first error: loops", lambda a: _number(a.diversity_loops)),
    ]
    head = ("", *(_title(name) for name in evaluations))
    rows = [(title, *(show(e.analysis) for e in evaluations.values())) for title, show in columns]
    types = sorted({name for e in evaluations.values() for name in e.analysis.recovery})
    recovery = [(name, *(_recovered(e.analysis, name) for e in evaluations.values())) for name in types]
    return (
        "<h2>How episodes fail</h2><p class=about>Shares are of failed episodes, and overlap. Diversity: different"
        " commands / commands.</p>"
        + _table(head, rows)
        + "<h3>Recovery from the first error, by its type</h3>"
        + (_table(head, recovery) if recovery else "<p class=about>No command of a graded episode failed.</p>")
    )


def _recovered(analysis: Analysis, name: str) -> str:
    got = analysis.recovery.get(name)
    return _NOTHING if got is None else f"{got.rate:.0%} ({got.recovered} of {got.episodes})"


def _episodes(run: Path, evaluations: Mapping[str, Evaluation]) -> str:
    """The same tasks before and after: from all over the list some that changed for the better, and one that failed."""
    if not evaluations:
        return ""
    place = run if (run / RESULT).exists() else run / "evaluations"
    names = [name for name in evaluations if name != "start" or "before_ppo" not in evaluations]
    sides = [
        _first_of_each(read_trajectories(place if place == run else place / name)) for name in (names[0], names[-1])
    ]
    before, after = sides
    better = [task for task in sorted(after) if _passed(after[task]) and not _passed(before.get(task))]
    spread = better[:: -(-len(better) // (SHOWN_EPISODES - 1)) or 1]
    others = sorted((task for task in after if task not in spread), key=lambda task: (_passed(after[task]), task))
    tasks = [*spread, *others[: SHOWN_EPISODES - len(spread)]]
    parts = ["<h2>Episodes</h2>"]
    for task in tasks:
        columns = [(names[-1], after[task])]
        if len(names) > 1 and task in before:
            columns.insert(0, (names[0], before[task]))
        body = "".join(f"<div>{_episode(_title(name), trajectory)}</div>" for name, trajectory in columns)
        instruction = after[task].opening[-1].content
        parts.append(f"<h3>{escape(task)}</h3><pre>{escape(instruction)}</pre><div class=pair>{body}</div>")
    return "".join(parts)


def _episode(title: str, trajectory: Trajectory) -> str:
    outcome = "passed" if _passed(trajectory) else "failed"
    parts = [f"<p>{escape(title)}: <b class={outcome}>{outcome}</b>, {escape(str(trajectory.failure))}</p>"]
    for turn in trajectory.turns:
        parts.append(f"<pre>{_cut(turn.text)}</pre>")
        if turn.observation is not None:
            parts.append(f"<pre class=seen>{_cut(turn.observation)}</pre>")
    return "".join(parts)


def _first_of_each(trajectories: Iterable[Trajectory]) -> dict[str, Trajectory]:
    found: dict[str, Trajectory] = {}
    for trajectory in trajectories:
        found.setdefault(trajectory.task, trajectory)
    return found


def _passed(trajectory: Trajectory | None) -> bool:
    return trajectory is not None and trajectory.reward is not None and trajectory.reward >= 1.0


def _cut(text: str) -> str:
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} [... {len(text) - _LONGEST} characters more]")


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("step-", "step "))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"
