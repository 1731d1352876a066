"""Model calls in numbers, from their notes: how many, how fast, how often the endpoint said to slow down."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from runtime.chat.notes import CallNote

RATE_OVER_S = 60.0
KEPT = 2000
"""Latest answers that the quantiles are taken over."""
TOO_MANY = 429


@dataclass
class CallTally:
    """Tries of calls; a call that is tried twice counts twice, since the endpoint saw both."""

    by_status: Counter[str] = field(default_factory=Counter)
    """`200`, `429`, ..., and `none` where no answer came."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _answered_at: deque[float] = field(default_factory=deque)

    def __call__(self, note: CallNote) -> None:
        self.by_status[status_of(note)] += 1
        self.prompt_tokens += note.prompt_tokens
        self.completion_tokens += note.completion_tokens
        self.cost += note.cost
        if note.answered:
            self._latencies.append(note.latency_s)
            self._answered_at.append(note.at)
            self._forget(note.at)

    @property
    def tries(self) -> int:
        return self.by_status.total()

    @property
    def answered(self) -> int:
        return self.by_status["200"]

    @property
    def told_to_slow_down(self) -> int:
        return self.by_status[str(TOO_MANY)]

    @property
    def failed(self) -> int:
        """Without an answer, for any other reason."""
        return self.tries - self.answered - self.told_to_slow_down

    def rate_per_min(self, now: float) -> float:
        """Answers within the last minute."""
        self._forget(now)
        return len(self._answered_at) * 60.0 / RATE_OVER_S

    def _forget(self, now: float) -> None:
        while self._answered_at and self._answered_at[0] < now - RATE_OVER_S:
            self._answered_at.popleft()

    def latency_s(self, quantile: float) -> float:
        """By the nearest rank; 0 while nothing has been answered."""
        ordered = sorted(self._latencies)
        return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)] if ordered else 0.0


def status_of(note: CallNote) -> str:
    return "none" if note.status is None else str(note.status)
