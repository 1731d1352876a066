"""The controller as a state machine, and the gate around it."""

import asyncio
import random

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import ValidationError

from runtime.chat.concurrency import ConcurrencySettings, Controller, Gate, Outcome, Ticket


def controller(**settings) -> Controller:
    return Controller(ConcurrencySettings(**{"floor": 2, "start": 8, "cap": 16, "window": 4} | settings))


def enter_all(machine: Controller) -> list[Ticket]:
    tickets = []
    while ticket := machine.try_enter():
        tickets.append(ticket)
    return tickets


def test_one_overload_felt_by_all_cuts_once():
    machine = controller()
    for ticket in enter_all(machine):
        machine.leave(ticket, Outcome.OVERLOADED)
    assert (machine.limit, machine.cuts) == (4, 1)


def test_an_overload_after_the_cut_cuts_again_down_to_the_floor():
    machine = controller()
    for _ in range(5):
        machine.leave(machine.try_enter(), Outcome.OVERLOADED)
    assert machine.limit == 2


def test_until_the_first_cut_every_good_answer_adds_one():
    machine = controller(cap=100)
    tickets = enter_all(machine)
    for _ in range(8):
        machine.leave(tickets.pop(), Outcome.OK)
        tickets += enter_all(machine)
    assert machine.limit == len(tickets) == 16


def test_after_a_cut_a_full_round_of_good_answers_adds_one():
    machine = controller(start=16)
    machine.leave(machine.try_enter(), Outcome.OVERLOADED)
    tickets = enter_all(machine)
    assert len(tickets) == 8
    for _ in range(8):
        machine.leave(tickets.pop(), Outcome.OK)
        tickets += enter_all(machine)
    assert machine.limit == 9


def test_the_limit_does_not_grow_while_nobody_is_held_back():
    machine = controller()
    for _ in range(100):
        machine.leave(machine.try_enter(), Outcome.OK)
    assert machine.limit == 8


def test_slower_answers_cut_gently():
    machine = controller(slow_factor=0.75)
    for _ in range(8):
        machine.leave(machine.try_enter(), Outcome.OK, 0.01)
    for _ in range(8):
        machine.leave(machine.try_enter(), Outcome.OK, 0.05)
    assert machine.cuts == 0, "one slow window may be chance"
    for _ in range(8):
        machine.leave(machine.try_enter(), Outcome.OK, 0.05)
    assert (machine.limit, machine.cuts) == (6, 1)


def test_another_kind_of_call_is_not_slower_for_having_short_answers():
    machine = controller()
    for kind, pace in [("furnish", 0.01)] * 40 + [("solve", 1.0)] * 40:
        machine.leave(machine.try_enter(), Outcome.OK, pace, kind=kind)
    assert machine.cuts == 0


def test_long_tails_are_no_slowness():
    rng = random.Random(0)
    machine = Controller(ConcurrencySettings(floor=4, start=16, cap=16))
    for _ in range(20_000):
        machine.leave(machine.try_enter(), Outcome.OK, rng.lognormvariate(0, 1))
    assert machine.cuts == 0


def test_a_lasting_slowness_becomes_the_measure():
    machine = controller(floor=2, start=4, window=4)
    for pace in [0.01] * 4 + [0.05] * 400:
        machine.leave(machine.try_enter(), Outcome.OK, pace)
    before = machine.cuts
    for _ in range(40):
        machine.leave(machine.try_enter(), Outcome.OK, 0.05)
    assert machine.cuts == before


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ValidationError, match="floor <= start <= cap"):
        ConcurrencySettings(floor=9, start=8)


class ControllerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.machine = controller()
        self.tickets = []

    @rule()
    def enter(self):
        limit, flying = self.machine.limit, len(self.tickets)
        ticket = self.machine.try_enter()
        assert (ticket is not None) == (flying < limit)
        if ticket:
            self.tickets.append(ticket)

    @precondition(lambda self: self.tickets)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        pace=st.one_of(st.none(), st.floats(min_value=1e-6, max_value=1e3)),
    )
    def leave(self, data, outcome, pace):
        index = data.draw(st.integers(0, len(self.tickets) - 1))
        self.machine.leave(self.tickets.pop(index), outcome, pace)

    @invariant()
    def within_bounds(self):
        assert 2 <= self.machine.limit <= 16
        assert self.machine.in_flight == len(self.tickets)


TestControllerMachine = ControllerMachine.TestCase


async def hold(gate: Gate, name: str, entered: list[str], release: anyio.Event) -> None:
    async with gate.slot():
        entered.append(name)
        await release.wait()


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


async def test_first_come_first_served_within_the_limit():
    gate, entered, release = Gate(controller(floor=1, start=1)), [], anyio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for name in "abc":
                tasks.start_soon(hold, gate, name, entered, release)
                await settle()
            assert entered == ["a"]
            assert gate.waiting == 2
            release.set()
    assert entered == ["a", "b", "c"]
    assert gate.controller.in_flight == 0


async def test_a_waiter_that_is_cancelled_leaves_the_queue():
    gate, entered, release = Gate(controller(floor=1, start=1)), [], anyio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, gate, "a", entered, release)
            await settle()
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(hold, gate, "b", entered, release)
                await settle()
                impatient.cancel_scope.cancel()
            assert gate.waiting == 0
            release.set()
    assert entered == ["a"]


async def test_a_waiter_cancelled_in_the_moment_of_admission_gives_the_slot_on():
    gate, entered, release = Gate(controller(floor=1, start=1)), [], anyio.Event()
    async with gate.slot():
        doomed = asyncio.create_task(hold(gate, "doomed", entered, release))
        patient = asyncio.create_task(hold(gate, "patient", entered, release))
        await settle()
    doomed.cancel()  # it has its ticket and has not run since
    release.set()
    with anyio.fail_after(5):
        await asyncio.gather(doomed, patient, return_exceptions=True)
    assert entered == ["patient"]
    assert gate.controller.in_flight == 0


async def test_the_slot_comes_back_when_the_call_fails():
    gate = Gate(controller(floor=1, start=1))
    with pytest.raises(RuntimeError):
        async with gate.slot():
            raise RuntimeError
    assert gate.controller.in_flight == 0
