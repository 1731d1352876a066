"""The buffer as a state machine: accounts balance, staleness is bounded, admission is paced."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainer.buffer import Buffer
from trainer.sample import Sample


def sample(group, member, version):
    return Sample(
        id=f"{group}/{member}",
        group=group,
        ids=[1, 2],
        mask=[0, 1],
        logprobs=[0.0, -1.0],
        versions=[-1, version],
        reward=1.0,
    )


def fill(buffer, group, version, size=2):
    buffer.admit(group)
    for member in range(size):
        buffer.finish(sample(group, member, version))


def test_at_bound_zero_nothing_starts_before_the_update_it_belongs_to():
    buffer = Buffer(batch=4, group_size=2, bound=0)
    assert buffer.room() == 2
    fill(buffer, "a", 0)
    fill(buffer, "b", 0)
    assert buffer.room() == 0
    taken = buffer.take()
    assert taken is not None
    assert [s.id for s in taken] == ["a/0", "a/1", "b/0", "b/1"]
    assert buffer.room() == 0
    buffer.advance(1)
    assert buffer.room() == 2


def test_staleness_counts_the_time_in_the_queue():
    buffer = Buffer(batch=2, group_size=2, bound=1)
    fill(buffer, "old", 0)
    buffer.advance(1)
    buffer.advance(2)
    assert buffer.take() is None
    assert buffer.counts["dropped"] == 2
    buffer.check()
    assert buffer.room() == 2


def test_a_failed_episode_makes_room_and_is_in_no_batch():
    buffer = Buffer(batch=2, group_size=2, bound=0)
    buffer.admit("a")
    buffer.finish(sample("a", 0, 0))
    buffer.fail("a", "sandbox_lost")
    assert buffer.take() is None
    assert buffer.room() == 1
    fill(buffer, "b", 0)
    taken = buffer.take()
    assert taken is not None
    assert [s.id for s in taken] == ["a/0", "b/0", "b/1"]
    buffer.check()


def test_delivering_twice_trains_once():
    buffer = Buffer(batch=2, group_size=2, bound=0)
    fill(buffer, "a", 0)
    buffer.finish(sample("a", 0, 0))
    assert len(buffer.take() or []) == 2
    buffer.finish(sample("a", 0, 0))
    assert buffer.ready == 0
    buffer.check()


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="multiple"):
        Buffer(batch=3, group_size=2, bound=0)
    buffer = Buffer(batch=2, group_size=2, bound=0)
    buffer.admit("a")
    with pytest.raises(ValueError, match="cannot be admitted"):
        buffer.admit("b")
    with pytest.raises(ValueError, match="version"):
        buffer.advance(0)


class Machine(RuleBasedStateMachine):
    bound = 1

    def __init__(self):
        super().__init__()
        self.buffer = Buffer(batch=4, group_size=2, bound=self.bound)
        self.open = {}
        self.named = 0
        self.taken = []

    @precondition(lambda self: self.buffer.room() > 0)
    @rule()
    def admit(self):
        self.named += 1
        self.buffer.admit(f"{self.named:04d}")
        self.open[f"{self.named:04d}"] = [0, 1]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data, fails):
        group = data.draw(st.sampled_from(sorted(self.open)))
        member = self.open[group].pop()
        if not self.open[group]:
            del self.open[group]
        if fails:
            self.buffer.fail(group, "sandbox_lost")
        else:
            self.buffer.finish(sample(group, member, self.buffer.version))

    @rule()
    def learn(self):
        batch = self.buffer.take()
        if batch is not None:
            assert len(batch) >= 4
            assert max(self.buffer.ages(batch)) <= self.bound
            self.taken += [s.id for s in batch]
            self.buffer.advance(self.buffer.version + 1)

    @invariant()
    def balances(self):
        self.buffer.check()
        assert len(self.taken) == len(set(self.taken))

    @invariant()
    def never_stuck(self):
        assert self.buffer.running or self.buffer.room() or self.buffer.ready >= 4


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=60)


class SynchronousMachine(Machine):
    bound = 0


TestSynchronousMachine = SynchronousMachine.TestCase
TestSynchronousMachine.settings = settings(max_examples=60, stateful_step_count=60)
