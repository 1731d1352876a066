"""The difficulty band: tasks that an author's solver sometimes solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from generators.messages import Attempt
from runtime.errors import UserError


@dataclass(frozen=True)
class Band:
    """Pass rates from `low` to `high`, both included."""

    low: Fraction
    high: Fraction

    @classmethod
    def parse(cls, text: str) -> Band | None:
        """`1/8..7/8`, `0.2..0.9`; None for an empty text. Raises: UserError."""
        if not text:
            return None
        low, dots, high = text.partition("..")
        try:
            band = cls(Fraction(low.strip()), Fraction(high.strip()))
        except (ValueError, ZeroDivisionError):
            band = None
        if band is None or not dots or not 0 <= band.low <= band.high <= 1:
            raise UserError("--band", f"{text!r} is no band of pass rates", "Write two rates, as in 1/8..7/8")
        return band

    def holds(self, graded: Sequence[Attempt]) -> bool:
        """Whether the share of attempts that passed lies in the band; exact, as counts are."""
        passed = sum(attempt.reward is not None and attempt.reward >= 1.0 for attempt in graded)
        return self.low <= Fraction(passed, len(graded)) <= self.high
