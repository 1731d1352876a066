"""The decision rests on the shortest prefix that settles it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.messages import Attempt
from generators.stages.solve import deciding_prefix, shortest_success


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [
        ([], None),
        ([True, True, True], None),
        ([True, False, False, False], 4),
        ([False] * 4, None),
        ([False] * 5 + [True, True], 6),
        ([False] * 8, 8),
    ],
)
def test_at_least_four_with_one_success_or_all_eight(outcomes: list[bool], size: int | None) -> None:
    assert deciding_prefix(outcomes, least=4, most=8) == size


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 6), st.integers(1, 16))
def test_more_attempts_never_change_a_decision(outcomes: list[bool], least: int, most: int) -> None:
    decisions = [deciding_prefix(outcomes[:n], least=least, most=most) for n in range(len(outcomes) + 1)]
    made = [decision for decision in decisions if decision is not None]
    assert len(set(made)) <= 1
    assert decisions == sorted(decisions, key=lambda decision: decision is not None)


def attempt(index: int, commands: int, reward: float | None) -> Attempt:
    return Attempt(index=index, reward=reward, failure="", commands=("true",) * commands, turns=commands)


def test_the_shortest_and_then_earliest_success_is_the_reference() -> None:
    attempts = [attempt(0, 1, 0.0), attempt(1, 3, 1.0), attempt(2, 2, 1.0), attempt(3, 2, 1.0), attempt(4, 1, None)]
    reference = shortest_success(attempts)
    assert reference is not None
    assert len(reference.commands) == 2
    assert shortest_success(attempts[:1]) is None
