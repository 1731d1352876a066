"""The decision rests on the shortest prefix that settles it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.band import Band
from generators.handling import UnfitError
from generators.messages import Attempt
from generators.stages.solve import StopRule, refuse_lost, shortest_success
from runtime.stage import RetryLater
from sandbox.spec import FailureClass


def made(outcomes: Sequence[bool | None]) -> list[Attempt]:
    """None: infrastructure took it."""
    return [attempt(index, 1, None if outcome is None else float(outcome)) for index, outcome in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [
        ([], None),
        ([True, True, True], None),
        ([True, False, False, False], 4),
        ([False] * 4, None),
        ([False] * 5 + [True, True], 6),
        ([False] * 8, 8),
        ([True, None, None, None], None),
        ([True, None, None, None, False, False, False], 7),
    ],
)
def test_at_least_four_with_one_success_or_all_eight(outcomes: list[bool | None], size: int | None) -> None:
    assert StopRule(least=4, most=8).prefix(made(outcomes)) == size


@pytest.mark.parametrize(
    ("outcomes", "size", "inside"),
    [
        ([True, True, False, False, True], 4, True),
        ([True] * 6, None, None),
        ([True] * 15, 15, False),
        ([True] * 8 + [False] * 2, 10, True),
        ([False] * 14, None, None),
        ([None] * 15 + [True], 15, False),
        ([None] * 8 + [True, False], 10, True),
    ],
)
def test_a_band_ends_the_attempts_once_it_is_certain(
    outcomes: list[bool | None], size: int | None, inside: bool | None
) -> None:
    rule = StopRule(most=16, least=4, band=Band.parse("1/8..7/8"))
    assert rule.prefix(made(outcomes)) == size
    if size is not None:
        assert rule.inside(made(outcomes)[:size]) is inside


def test_a_task_nobody_solved_is_in_no_band_before_all_attempts_are_made() -> None:
    rule = StopRule(most=4, band=Band.parse("0..3/4"))
    assert rule.prefix(made([False] * 3)) is None
    assert dataclasses.replace(rule, solvable=False).prefix(made([False] * 3)) == 1


@pytest.mark.parametrize(
    ("passed", "failed", "lost", "failure", "end"),
    [
        (0, 1, 15, FailureClass.LLM_ERROR, RetryLater),
        (1, 2, 13, FailureClass.SANDBOX_LOST, RetryLater),
        (0, 4, 12, FailureClass.LLM_ERROR, None),
        (0, 1, 15, FailureClass.GRADE_TIMEOUT, None),
        (0, 0, 16, FailureClass.GRADE_TIMEOUT, RetryLater),
        (0, 1, 15, FailureClass.LLM_FILTERED, UnfitError),
        (0, 4, 12, FailureClass.LLM_FILTERED, None),
    ],
)
def test_a_task_is_not_judged_by_fewer_attempts_than_the_least(
    passed: int, failed: int, lost: int, failure: FailureClass, end: type[Exception] | None
) -> None:
    graded = made([True] * passed + [False] * failed)
    attempts = graded + [Attempt(index=0, reward=None, failure=failure, commands=(), turns=0) for _ in range(lost)]
    with pytest.raises(end) if end else contextlib.nullcontext():
        refuse_lost("0-00000", StopRule(most=16, least=4), attempts)


@given(
    st.lists(st.sampled_from([True, False, None]), max_size=20),
    st.integers(1, 6),
    st.integers(1, 16),
    st.sampled_from(["", "1/8..7/8", "0..1/2"]),
    st.sampled_from([1.0, 0.9]),
)
def test_more_attempts_never_change_a_decision(
    outcomes: list[bool | None], least: int, most: int, band: str, confidence: float
) -> None:
    rule = StopRule(least=least, most=most, band=Band.parse(band), confidence=confidence)
    decisions = [rule.prefix(made(outcomes[:n])) for n in range(len(outcomes) + 1)]
    made_ones = [decision for decision in decisions if decision is not None]
    assert len(set(made_ones)) <= 1
    assert decisions == sorted(decisions, key=lambda decision: decision is not None)


def attempt(index: int, commands: int, reward: float | None) -> Attempt:
    return Attempt(index=index, reward=reward, failure="", commands=("true",) * commands, turns=commands)


def test_the_shortest_and_then_earliest_success_is_the_reference() -> None:
    attempts = [attempt(0, 1, 0.0), attempt(1, 3, 1.0), attempt(2, 2, 1.0), attempt(3, 2, 1.0), attempt(4, 1, None)]
    reference = shortest_success(attempts)
    assert reference is not None
    assert len(reference.commands) == 2
    assert shortest_success(attempts[:1]) is None
