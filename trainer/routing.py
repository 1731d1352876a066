"""Which engine takes the next request: a plain state machine, no waiting and no input or output in it.

An engine is in routing, or out with a reason. It goes out when its weights are not to be trusted (a hand-over that is
under way, or did not come to a good end) and after `FAILURES` requests in a row that it failed (the circuit breaker).
It comes back only by `enter`, which the pool calls when it has seen that the engine serves the learner's weights: an
engine that was started again behind the same address gets no request before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.policy.protocol import PolicyClient

FAILURES = 3
"""Requests in a row that fail before an engine is out."""


@dataclass(eq=False)
class Seat:
    """One engine as the router sees it."""

    name: str
    client: PolicyClient
    running: int = 0
    failures: int = 0
    out: str = ""
    """Why it gets no requests; empty when it does."""


class Router:
    """Chooses among engines by version and load."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = tuple(seats)

    @property
    def closed(self) -> bool:
        """Whether no engine is in routing."""
        return all(seat.out for seat in self.seats)

    def choose(self, *, version: int, tried: Collection[Seat] = ()) -> Seat | None:
        """The least loaded engine in routing, those of `version` first; None when there is none."""
        fit = [seat for seat in self.seats if seat not in tried and not seat.out]
        return min(fit, key=lambda seat: (seat.client.version != version, seat.running), default=None)

    def failed(self, seat: Seat, reason: str) -> None:
        seat.failures += 1
        if seat.failures >= FAILURES and not seat.out:
            self.leave(seat, f"{seat.failures} requests in a row failed, the last: {reason}")

    def answered(self, seat: Seat) -> None:
        seat.failures = 0

    def leave(self, seat: Seat, reason: str) -> None:
        seat.out = reason

    def enter(self, seat: Seat) -> None:
        seat.out, seat.failures = "", 0

    @contextmanager
    def using(self, seat: Seat) -> Iterator[None]:
        seat.running += 1
        try:
            yield
        finally:
            seat.running -= 1
