"""What each step is meant to be, drawn from the seed: a correct step, or a mistake of one of the five types."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from generators.messages import ErrorType


def draw_error(
    key: str, *, rate: float, weights: Mapping[str, float], possible: Sequence[ErrorType]
) -> ErrorType | None:
    """The type of mistake to make, None for a correct step: a function of the arguments alone.

    The type is drawn among the possible ones; where none is possible, or none has a weight, the step is a correct one.
    """
    rng = random.Random(f"{key}/intent")
    candidates = [error_type for error_type in possible if weights[error_type] > 0]
    if rng.random() >= rate or not candidates:
        return None
    return rng.choices(candidates, [weights[error_type] for error_type in candidates])[0]
