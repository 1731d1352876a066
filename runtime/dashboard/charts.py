"""Curves as SVG, drawn here so that a page needs no library and no script to show them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runtime.dashboard.library import Curve

WIDTH, HEIGHT = 320.0, 110.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One curve in a chart."""

    label: str
    points: str
    """As SVG takes them."""
    last: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity, of one run or of several."""

    name: str
    lines: tuple[Line, ...]
    low: str
    high: str
    until: str


def charts(curves: Sequence[tuple[str, Sequence[Curve]]]) -> list[Chart]:
    """One chart for each name; what never moves from zero is left out. `curves`: a label and its curves."""
    names = sorted({curve.name for _, group in curves for curve in group})
    drawn = []
    for name in names:
        same = [(label, curve) for label, group in curves for curve in group if curve.name == name and curve.points]
        if any(value for _, curve in same for _, value in curve.points):
            drawn.append(_chart(name, same))
    return drawn


def _chart(name: str, curves: Sequence[tuple[str, Curve]]) -> Chart:
    xs = [x for _, curve in curves for x, _ in curve.points]
    ys = [y for _, curve in curves for _, y in curve.points]
    low, high, until = min(*ys, 0.0), max(*ys, 0.0), max(xs)
    lines = tuple(
        Line(
            label=label,
            points=" ".join(_point(x, y, low, high, until) for x, y in curve.points),
            last=_number(curve.points[-1][1]),
        )
        for label, curve in curves
    )
    return Chart(
        name=name, lines=lines, low=_number(low), high=_number(high), until=f"{_number(until)} {curves[0][1].unit}"
    )


def _point(x: float, y: float, low: float, high: float, until: float) -> str:
    across = x / until if until else 0.0
    up = (y - low) / (high - low) if high > low else 0.0
    return f"{across * WIDTH:.1f},{HEIGHT - up * HEIGHT:.1f}"


def _number(value: float) -> str:
    return f"{value:.4g}"
