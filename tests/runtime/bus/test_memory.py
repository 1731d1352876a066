"""The memory bus: the contract, and its core as a state machine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from runtime.bus.memory import Lease, MemoryBus, QueueCore
from runtime.bus.protocol import Bus, QueueOptions
from tests.runtime.bus.contract import BusContract

KEYS = [f"k{n}" for n in range(6)]


class TestMemoryBus(BusContract):
    lease_s = 0.5

    def open(self) -> AbstractAsyncContextManager[Bus]:
        return MemoryBus()


def test_settled_keys_are_remembered_for_a_while_and_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.bus.memory.REMEMBERED", 3)
    core = QueueCore("q", QueueOptions())
    for number in range(10):
        assert core.publish(f"k{number}", b"", 0.0)
        lease = core.lease(1, 0.0)
        assert lease is not None
        assert core.ack(lease)
    for number in range(10):
        core.publish(f"k{number}", b"", 0.0)
    assert core.state(0.0).ready == 7


class CoreMachine(RuleBasedStateMachine):
    """Against a model that keeps, for each key, where it is, its attempts, and the lease that may settle it."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.options = QueueOptions(capacity=4, lease_s=10.0, max_attempts=3)
        self.core = QueueCore("q", self.options)
        self.now = 0.0
        self.place: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.due: dict[str, float] = {}
        self.token: dict[str, int] = {}
        self.owner: dict[str, int] = {}
        self.withdrawn: set[str] = set()
        """Under lease."""

    def live(self) -> list[str]:
        return [k for k, p in self.place.items() if p in ("ready", "leased", "delayed")]

    def again(self, key: str, delay_s: float) -> None:
        if key in self.withdrawn:
            self.withdrawn.remove(key)
            self.place[key] = "settled"
        elif self.attempts[key] >= self.options.max_attempts:
            self.place[key] = "dead"
        elif delay_s > 0:
            self.place[key], self.due[key] = "delayed", self.now + delay_s
        else:
            self.place[key] = "ready"

    def holds(self, lease: Lease) -> bool:
        return self.place.get(lease.key) == "leased" and self.token[lease.key] == lease.token

    @rule(key=st.sampled_from(KEYS))
    def publish(self, key: str) -> None:
        known, full = key in self.place, len(self.live()) >= self.options.capacity
        assert self.core.publish(key, key.encode(), self.now) is (known or not full)
        if not known and not full:
            self.place[key], self.attempts[key] = "ready", 0

    @rule(target=leases, owner=st.integers(1, 2))
    def lease(self, owner: int):
        lease = self.core.lease(owner, self.now)
        if lease is None:
            assert "ready" not in self.place.values()
            return multiple()
        key = lease.key
        assert self.place[key] == "ready"
        self.attempts[key] += 1
        assert (lease.body, lease.attempt) == (key.encode(), self.attempts[key])
        self.place[key], self.due[key], self.token[key] = "leased", self.now + self.options.lease_s, lease.token
        self.owner[key] = owner
        return lease

    @rule(lease=leases)
    def ack(self, lease: Lease) -> None:
        holds = self.holds(lease)
        assert self.core.ack(lease) is holds
        if holds:
            self.place[lease.key] = "settled"
            self.withdrawn.discard(lease.key)

    @rule(lease=leases, delay_s=st.sampled_from([0.0, 3.0, 30.0]))
    def nack(self, lease: Lease, delay_s: float) -> None:
        holds = self.holds(lease)
        assert self.core.nack(lease, delay_s, self.now) is holds
        if holds:
            self.again(lease.key, delay_s)

    @rule(lease=leases)
    def extend(self, lease: Lease) -> None:
        holds = self.holds(lease)
        assert self.core.extend(lease, self.now) is holds
        if holds:
            self.due[lease.key] = self.now + self.options.lease_s

    @rule(lease=consumes(leases))
    def reject(self, lease: Lease) -> None:
        holds = self.holds(lease)
        assert self.core.reject(lease, "why") is holds
        if holds:
            self.place[lease.key] = "dead"
            self.withdrawn.discard(lease.key)

    @rule(key=st.sampled_from(KEYS))
    def withdraw(self, key: str) -> None:
        there = key in self.live()
        assert self.core.withdraw(key) is there
        if there and self.place[key] == "leased":
            self.withdrawn.add(key)
        elif there:
            self.place[key] = "settled"

    @rule(owner=st.integers(1, 2))
    def leave(self, owner: int) -> None:
        self.core.release(owner, self.now)
        for key in [k for k in self.live() if self.place[k] == "leased" and self.owner[k] == owner]:
            self.again(key, 0.0)

    @rule(key=st.sampled_from(KEYS))
    def requeue(self, key: str) -> None:
        dead = self.place.get(key) == "dead"
        assert self.core.requeue(key, self.now) is dead
        if dead:
            self.place[key], self.attempts[key] = "ready", 0

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = [k for k in self.live() if self.place[k] != "ready" and self.due[k] <= self.now]
        changed = self.core.tick(self.now)
        assert changed is bool(late)
        for key in late:
            if self.place[key] == "leased":
                self.again(key, 0.0)
            else:
                self.place[key] = "ready"
        due = self.core.next_due()
        waiting = [self.due[k] for k in self.live() if self.place[k] != "ready"]
        assert not waiting or (due is not None and due <= min(waiting))

    @invariant()
    def places_agree(self) -> None:
        state = self.core.state(self.now)
        places = list(self.place.values())
        assert [state.ready, state.leased, state.delayed, state.dead] == [
            places.count(p) for p in ("ready", "leased", "delayed", "dead")
        ]
        assert {letter.key for letter in self.core.dead_letters()} == {k for k, p in self.place.items() if p == "dead"}

    @invariant()
    def slots_agree(self) -> None:
        for owner in (1, 2):
            held = [k for k in self.live() if self.place[k] == "leased" and self.owner[k] == owner]
            assert self.core.held(owner) == len(held)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=60, stateful_step_count=40)
