"""Curves as SVG, drawn here so that a page needs no library and no script to show them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from runtime.dashboard.library import Curve

WIDTH, HEIGHT = 320.0, 110.0
_FEW = 40
"""So many points are marked one by one."""
_FLAT = 0.5
"""A curve that moves by less than this share of its height is shown without the ground it stands on."""

_SHARES = ("reward", "held_out_pass_rate")
"""Shown from 0 to 1 where they are shares: how much is left to win is part of the picture."""

LEARNING = {
    "reward": "reward of a batch",
    "held_out_pass_rate": "pass rate, held out",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "entropy": "entropy, nats a token",
    "approx_kl": "KL of the update, nats",
    "clipfrac": "share of ratios clipped",
    "ratio_max": "largest ratio",
    "staleness_mean": "staleness, versions",
    "behaviour_gap": "engine to learner gap",
    "explained_variance": "explained variance",
    "tokens_per_s": "tokens a second",
    "wait_s": "waited for rollouts, s",
    "update_s": "update, s",
    "turns": "turns of an episode",
}
"""What a training run is judged by, in the order in which a person looks, with its unit."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One curve in a chart."""

    label: str
    points: str
    """As SVG takes them."""
    marks: tuple[tuple[str, str], ...]
    """The points one by one, where they are few."""
    last: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity, of one run or of several."""

    name: str
    title: str
    lines: tuple[Line, ...]
    low: str
    high: str
    until: str


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """All of a page: what it is about, and the rest."""

    first: tuple[Chart, ...]
    others: tuple[Chart, ...]


def charts(curves: Sequence[tuple[str, Sequence[Curve]]], *, stages: Sequence[str] = ()) -> Charts:
    """One chart for each name; `curves`: a label and its curves, `stages`: their order, else by name.

    What never moves from zero is left out, unless a run is judged by it: a reward that stays at zero is news. Where
    anything is learnt, `first` is that and the rest are the others; else everything is first.
    """
    order = {stage: index for index, stage in enumerate(stages)}
    found = {curve.name for _, group in curves for curve in group}
    names = sorted(found, key=lambda name: (order.get(name.partition(".")[0], len(order)), name))
    drawn = {}
    for name in names:
        same = [(label, curve) for label, group in curves for curve in group if curve.name == name and curve.points]
        if name in LEARNING or any(value for _, curve in same for _, value in curve.points):
            drawn[name] = _chart(name, same)
    learnt = tuple(drawn.pop(name) for name in LEARNING if name in drawn)
    rest = tuple(drawn.values())
    return Charts(first=learnt, others=rest) if learnt else Charts(first=rest, others=())


def _chart(name: str, curves: Sequence[tuple[str, Curve]]) -> Chart:
    xs = [x for _, curve in curves for x, _ in curve.points]
    ys = [y for _, curve in curves for _, y in curve.points]
    low, high = (0.0, 1.0) if name in _SHARES and min(ys) >= 0.0 and max(ys) <= 1.0 else _range(ys)
    until = max(xs)
    lines = []
    for label, curve in curves:
        places = [_place(x, y, low, high, until) for x, y in curve.points]
        lines.append(
            Line(
                label=label,
                points=" ".join(f"{x},{y}" for x, y in places),
                marks=tuple(places) if len(places) <= _FEW else (),
                last=_number(curve.points[-1][1]),
            )
        )
    return Chart(
        name=name,
        title=LEARNING.get(name, name),
        lines=tuple(lines),
        low=_number(low, high - low),
        high=_number(high, high - low),
        until=f"{_number(until)} {curves[0][1].unit}",
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero, unless all that happens is far from it."""
    low, high = min(values), max(values)
    if high > low and high - low < _FLAT * max(abs(low), abs(high)):
        return low, high
    return min(low, 0.0), max(high, 0.0)


def _place(x: float, y: float, low: float, high: float, until: float) -> tuple[str, str]:
    across = x / until if until else 0.0
    up = (y - low) / (high - low) if high > low else 0.0
    return f"{across * WIDTH:.1f}", f"{HEIGHT - up * HEIGHT:.1f}"


def _number(value: float, span: float = 0.0) -> str:
    """For people; `span`: what it must be told apart from is so far away."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 if not span or not value else min(9, max(3, 2 + math.ceil(math.log10(abs(value) / span))))
    return f"{value:.{digits}g}"
