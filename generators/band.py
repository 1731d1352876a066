"""The difficulty band: tasks that a solver sometimes solves; and when enough attempts were made to know.

The decision is the one that all attempts together give. It is known before the last one as soon as the attempts that
are left cannot change it, or are unlikely to: with a uniform prior over the solver's pass rate, `chance` is the
probability (beta-binomial) that all attempts will lie in the band, given those made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial

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

    def decision(self, passed: int, failed: int, left: int, *, confidence: float = 1.0) -> bool | None:
        """Whether all attempts, these and the `left` ones to come, lie in the band; None while that is open.

        With a confidence of 1 it is never another one than all attempts would give.
        """
        chance = self.chance(passed, failed, left)
        if chance >= confidence:
            return True
        return False if 1 - chance >= confidence else None

    def chance(self, passed: int, failed: int, left: int) -> Fraction:
        """Probability that the share of passes lies in the band once the `left` attempts are made."""
        every = passed + failed + left
        inside = [k for k in range(left + 1) if self.low * every <= passed + k <= self.high * every]
        return sum((_predicted(k, passed, failed, left) for k in inside), Fraction(0))


def passes(attempts: Sequence[Attempt]) -> int:
    return sum(attempt.reward is not None and attempt.reward >= 1.0 for attempt in attempts)


def _predicted(more: int, passed: int, failed: int, left: int) -> Fraction:
    """Probability of `more` passes among `left` attempts: beta-binomial with a uniform prior, exact."""
    after = _beta(passed + more + 1, failed + left - more + 1)
    return comb(left, more) * after / _beta(passed + 1, failed + 1)


def _beta(a: int, b: int) -> Fraction:
    return Fraction(factorial(a - 1) * factorial(b - 1), factorial(a + b - 1))
