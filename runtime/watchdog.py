"""Who has not moved, and how late the event loop answers.

Plain bookkeeping on an injected clock; the runner asks it once a pulse.

Invariants:
- Whatever is in work, or waits for its next attempt, is known by item, with its stage and since when. Another attempt
  is no movement: an item that infrastructure fails again and again is told like one whose handler hangs.
- A stall is told when its patience is over, and again each time the silence has doubled: never once a pulse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from runtime.limits import Limits


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has not moved. An empty item means the run as a whole."""

    item: str
    stage: str
    for_s: float
    waits_for: str
    """A limit and for how long, or what it is doing."""


class _Watch(msgspec.Struct):
    stage: str
    since: float
    tell_at: float
    in_work: bool = True
    attempts: int = 0
    """That failed since it was first taken up."""
    last: str = ""
    """Why the last of them failed."""


class Watchdog:
    """One run's items that were taken up and are not done."""

    def __init__(self, limits: Limits, *, patience_s: float, clock: Callable[[], float]) -> None:
        self._limits, self._patience_s, self._clock = limits, patience_s, clock
        self._work: dict[tuple[str, str], _Watch] = {}
        """By stage and item: an item's next stage may begin while the last one still puts its things away."""
        self._run = self._watch("")

    def started(self, item: str, stage: str) -> None:
        self._work.setdefault((stage, item), self._watch(stage)).in_work = True
        self._run = self._watch("")

    def failed(self, item: str, stage: str, why: str) -> None:
        """An attempt came to nothing; the item stays where it is."""
        watch = self._work[stage, item]
        watch.attempts, watch.last = watch.attempts + 1, why

    def ended(self, item: str, stage: str, *, moved: bool) -> None:
        """It is no longer in work. `moved`: it went on, or came to its end."""
        if moved:
            del self._work[stage, item]
        else:
            self._work[stage, item].in_work = False
        self._run = self._watch("")

    def stalls(self) -> list[Stall]:
        """What is to be told now."""
        now = self._clock()
        late = [(item, watch) for (_, item), watch in self._work.items() if watch.tell_at <= now]
        stalls = [self._tell(item, watch, self._waits_for(item, watch)) for item, watch in late]
        if self._run.tell_at <= now and not self._work:
            stalls.append(self._tell("", self._run, "a delivery: items are pending and none is in work"))
        return stalls

    def _watch(self, stage: str) -> _Watch:
        return _Watch(stage, self._clock(), self._clock() + self._patience_s)

    def _tell(self, item: str, watch: _Watch, waits_for: str) -> Stall:
        for_s = self._clock() - watch.since
        watch.tell_at = watch.since + 2 * for_s
        return Stall(item=item, stage=watch.stage, for_s=for_s, waits_for=waits_for)

    def _waits_for(self, item: str, watch: _Watch) -> str:
        claims = self._limits.of(item)
        if claims:
            now = ", ".join(f"{c.state} '{c.limit}' for {self._clock() - c.since:.0f} s" for c in claims)
        else:
            now = "its handler, which holds no limit" if watch.in_work else "its next attempt"
        return f"{now}; {watch.attempts} attempts failed, the last: {watch.last}" if watch.attempts else now


class LagGauge:
    """How late timers fire: the age of the longest thing that blocked the event loop."""

    def __init__(self, samples: int = 600) -> None:
        self._samples: deque[float] = deque(maxlen=samples)

    def add(self, lag_s: float) -> None:
        self._samples.append(max(0.0, lag_s))

    def quantile(self, share: float) -> float:
        """The lag that `share` of the samples did not exceed; 0 when there is none."""
        ordered = sorted(self._samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
