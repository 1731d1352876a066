"""What a step is meant to be: drawn from the seed, at the rate and with the weights asked for."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from generators.messages import ErrorType
from generators.synthesis.intents import draw_error

TYPES = get_args(ErrorType)


def draws(number: int, *, rate: float = 0.2, possible: tuple[ErrorType, ...] = TYPES, **weights: float) -> Counter:
    weights = dict.fromkeys(TYPES, 1.0) | weights
    return Counter(draw_error(f"item/{n}/0", rate=rate, weights=weights, possible=possible) for n in range(number))


def test_a_fifth_of_the_steps_are_mistakes_of_all_types() -> None:
    drawn = draws(5000)
    assert 900 < 5000 - drawn[None] < 1100
    assert min(drawn[error_type] for error_type in TYPES) > 140


def test_a_type_without_weight_is_never_drawn_and_a_heavy_one_more_often() -> None:
    drawn = draws(2000, rate=1.0, hallucination=0.0, command_error=5.0)
    assert drawn["hallucination"] == 0
    assert drawn["command_error"] > 3 * drawn["analysis_error"] > 0


def test_where_nothing_can_go_wrong_the_step_is_correct() -> None:
    assert draws(20, rate=1.0, possible=()) == {None: 20}
    assert draws(20, rate=1.0, possible=("hallucination",), hallucination=0.0) == {None: 20}


def test_the_rate_does_not_move_the_type() -> None:
    few, all_ = (
        [draw_error(f"{n}", rate=rate, weights=dict.fromkeys(TYPES, 1.0), possible=TYPES) for n in range(50)]
        for rate in (0.5, 1.0)
    )
    assert all(a in (None, b) for a, b in zip(few, all_, strict=True))
    assert any(few)
