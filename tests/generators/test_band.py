"""The difficulty band counts exactly."""

from __future__ import annotations

import pytest

from generators.band import Band
from generators.messages import Attempt
from runtime.errors import UserError


def attempts(passed: int, failed: int) -> list[Attempt]:
    rewards = [1.0] * passed + [0.0] * failed
    return [Attempt(index=i, reward=r, failure="", commands=(), turns=1) for i, r in enumerate(rewards)]


@pytest.mark.parametrize(
    ("passed", "failed", "inside"),
    [(0, 8, False), (1, 15, False), (2, 14, True), (1, 7, True), (7, 1, True), (14, 2, True), (15, 1, False)],
)
def test_both_ends_belong_to_the_band(passed: int, failed: int, inside: bool) -> None:
    band = Band.parse("1/8..7/8")
    assert band is not None
    assert band.holds(attempts(passed, failed)) is inside


def test_decimals_are_rates_as_well_and_nothing_is_no_band() -> None:
    assert Band.parse("0.125 .. 0.875") == Band.parse("1/8..7/8")
    assert Band.parse("") is None


@pytest.mark.parametrize("text", ["1/8", "1/8..", "7/8..1/8", "0..2", "-1..1", "1/0..1", "a..b"])
def test_what_is_no_band_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no band of pass rates"):
        Band.parse(text)
