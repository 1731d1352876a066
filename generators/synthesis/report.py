"""The outcome of a synthesis run as a person or a program reads it."""

from __future__ import annotations

import json
import sys

import msgspec

from generators.outdir import RunPlace
from generators.synthesis.run import Outcome
from generators.synthesis.statistics import Errors, Statistics
from runtime.plain_text import printable
from runtime.progress import table

_PLAIN_WIDTH = 160
"""Columns where nobody tells how wide the screen is: nothing is cut off in a log."""


def show_outcome(outcome: Outcome, place: RunPlace, *, as_json: bool) -> int:
    """Print it; returns the exit code: 1 when trajectories are missing."""
    if as_json:
        sys.stdout.write(json.dumps({"kind": "result", **msgspec.to_builtins(outcome)}, ensure_ascii=False) + "\n")
    else:
        _print(outcome, place)
    return 0 if outcome.statistics.trajectories == outcome.wanted else 1


def _print(outcome: Outcome, place: RunPlace) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    statistics = outcome.statistics
    console.print(table(("trajectories", "value"), _totals(statistics)))
    rows = [_row(name, errors) for name, errors in statistics.injected.items()]
    console.print(table(("error", "made", "recovered", "rate"), [*rows, _row("(natural)", statistics.natural)]))
    sys.stdout.write(printable(_verdict(outcome, place)) + "\n")


def _totals(statistics: Statistics) -> list[tuple[str, str]]:
    return [
        ("verified", f"{statistics.share_verified:.1%}"),
        ("tests passed", f"{statistics.mean_share_passed:.1%}"),
        ("turns", f"{statistics.mean_turns:.1f}"),
        ("tokens", f"{statistics.mean_tokens:.0f}"),
        ("discarded mistakes", str(statistics.discarded)),
        ("sent back by the critic", str(statistics.critic_rejections)),
        *((f"ended: {ending}", str(count)) for ending, count in statistics.endings.items()),
    ]


def _row(name: str, errors: Errors) -> tuple[str, ...]:
    rate = "" if errors.recovery_rate is None else f"{errors.recovery_rate:.0%}"
    return (name.replace("_", " "), str(errors.made), str(errors.recovered), rate)


def _verdict(outcome: Outcome, place: RunPlace) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in outcome.rejected.items())
    got = f"{outcome.statistics.trajectories} of {outcome.wanted} trajectories in {place.out}"
    got += f"; rejected: {reasons}" if reasons else ""
    if outcome.result.state == "drained":
        return f"{got}; stopped before the end ({outcome.result.reason}): go on with --resume --out {place.out}"
    return got
