"""The difficulty band counts exactly, and knows when it has seen enough."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from generators.band import Band
from runtime.errors import UserError


def band(text: str = "1/8..7/8") -> Band:
    parsed = Band.parse(text)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("passed", "failed", "inside"),
    [(0, 8, False), (1, 15, False), (2, 14, True), (1, 7, True), (7, 1, True), (14, 2, True), (15, 1, False)],
)
def test_both_ends_belong_to_the_band(passed: int, failed: int, inside: bool) -> None:
    assert band().decision(passed, failed, 0) is inside


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.sampled_from(["1/8..7/8", "0..1/2", "1/3..1"]))
def test_a_certain_decision_is_made_exactly_when_nothing_can_change_it(
    passed: int, failed: int, left: int, text: str
) -> None:
    assume(passed + failed + left)
    ends = {band(text).decision(passed + k, failed + left - k, 0) for k in range(left + 1)}
    assert band(text).decision(passed, failed, left) == (ends.pop() if len(ends) == 1 else None)


def test_sixteen_attempts_end_after_two_successes_and_two_failures_at_the_earliest() -> None:
    decided = [(p, f) for p in range(17) for f in range(17 - p) if band().decision(p, f, 16 - p - f)]
    assert min(p + f for p, f in decided) == 4
    assert (2, 2) in decided
    assert [f for f in range(17) if band().decision(0, f, 16 - f) is False] == [15, 16]


def test_less_confidence_decides_earlier_and_never_the_opposite_of_what_is_certain() -> None:
    earlier = 0
    for passed in range(17):
        for failed in range(17 - passed):
            sure = band().decision(passed, failed, 16 - passed - failed)
            loose = band().decision(passed, failed, 16 - passed - failed, confidence=0.95)
            assert sure is None or loose is sure
            earlier += sure is None and loose is not None
    assert earlier > 0
    assert band().decision(3, 1, 12, confidence=0.8) is True


def test_the_chance_is_that_of_a_uniform_prior() -> None:
    assert band("0..1").chance(3, 2, 5) == 1
    assert band("1..1").chance(0, 0, 4) == Fraction(1, 5)
    assert band("1..1").chance(1, 0, 1) == Fraction(2, 3)


def test_decimals_are_rates_as_well_and_nothing_is_no_band() -> None:
    assert Band.parse("0.125 .. 0.875") == Band.parse("1/8..7/8")
    assert Band.parse("") is None


@pytest.mark.parametrize("text", ["1/8", "1/8..", "7/8..1/8", "0..2", "-1..1", "1/0..1", "a..b"])
def test_what_is_no_band_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no band of pass rates"):
        Band.parse(text)
