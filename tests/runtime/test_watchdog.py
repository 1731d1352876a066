"""Who has not moved: on a clock of the test's own."""

from __future__ import annotations

from runtime.limits import Limits
from runtime.watchdog import Stall, Watchdog

FAULT = "EngineFault: docker: create failed"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def attempt(watchdog: Watchdog, clock: Clock, *, takes_s: float, pause_s: float) -> list[Stall]:
    """One attempt that infrastructure fails, and what is told until the next one begins."""
    watchdog.started("001", "build")
    clock.now += takes_s
    told = watchdog.stalls()
    watchdog.failed("001", "build", FAULT)
    watchdog.ended("001", "build", moved=False)
    clock.now += pause_s
    return told + watchdog.stalls()


def test_an_item_that_infrastructure_fails_for_ever_is_told_though_no_attempt_takes_long():
    clock = Clock()
    watchdog = Watchdog(Limits({}), patience_s=60.0, clock=clock)
    told = [stall for _ in range(30) for stall in attempt(watchdog, clock, takes_s=5.0, pause_s=5.0)]
    assert [(stall.item, stall.stage, stall.for_s) for stall in told] == [
        ("001", "build", 60.0),
        ("001", "build", 120.0),
        ("001", "build", 240.0),
    ]
    assert told[0].waits_for == f"its next attempt; 6 attempts failed, the last: {FAULT}"


def test_an_item_that_went_on_begins_anew():
    clock = Clock()
    watchdog = Watchdog(Limits({}), patience_s=60.0, clock=clock)
    attempt(watchdog, clock, takes_s=50.0, pause_s=5.0)
    watchdog.started("001", "build")
    watchdog.ended("001", "build", moved=True)
    watchdog.started("001", "grade")
    clock.now += 50.0
    assert watchdog.stalls() == []
    clock.now += 10.0
    (stall,) = watchdog.stalls()
    assert (stall.stage, stall.for_s, stall.waits_for) == ("grade", 60.0, "its handler, which holds no limit")


def test_a_stage_that_ends_late_does_not_take_the_next_ones_watch_along():
    clock = Clock()
    watchdog = Watchdog(Limits({}), patience_s=60.0, clock=clock)
    watchdog.started("001", "build")
    watchdog.started("001", "grade")
    watchdog.ended("001", "build", moved=True)
    clock.now += 60.0
    assert [(stall.item, stall.stage) for stall in watchdog.stalls()] == [("001", "grade")]
