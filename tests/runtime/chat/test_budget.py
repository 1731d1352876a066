"""Ceilings that hold, with calls in flight."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runtime.chat.budget import Admission, Budget, BudgetSettings, Price, Spending
from runtime.errors import BudgetExhausted, UserError

CALL = Spending(tokens=40)


def budget(**options) -> Budget:
    return Budget(BudgetSettings(max_tokens=100, soft_share=0.5), **options)


async def spend(ledger: Budget, tokens: int) -> None:
    async with ledger.hold(CALL, purpose="draft", endpoint="e") as hold:
        hold.actual = Spending(tokens=tokens)


async def test_spending_is_counted_by_purpose():
    money = budget()
    await spend(money, 30)
    await spend(money, 10)
    assert money.spent.tokens == 40
    assert money.by_purpose["draft"].tokens == 40


async def test_the_soft_ceiling_warns_once():
    warned = []
    money = budget(on_soft=warned.append)
    for tokens in (40, 15, 5):
        await spend(money, tokens)
    assert [w.tokens for w in warned] == [55]
    assert money.soft_reached


async def test_a_call_that_cannot_fit_is_refused_with_the_ceiling_and_the_remedy():
    money = budget(spent=Spending(tokens=61))
    with pytest.raises(BudgetExhausted, match=r"max_tokens=100.*61 tokens.*Raise the ceiling"):
        await spend(money, 1)


async def test_a_call_that_fits_after_those_in_flight_waits_for_them():
    money, order, release = budget(spent=Spending(tokens=30)), [], anyio.Event()

    async def first():
        async with money.hold(CALL, purpose="a", endpoint="e") as hold:
            await release.wait()
            hold.actual = Spending(tokens=10)
            order.append("first")

    async def second():
        await spend(money, 40)
        order.append("second")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await checkpoint()
            await checkpoint()
            assert money.decide(CALL) is Admission.WAIT
            tasks.start_soon(second)
            await checkpoint()
            await checkpoint()
            assert order == []
            release.set()
    assert order == ["first", "second"]
    assert money.spent.tokens == 80


async def test_a_failed_call_gives_its_reservation_back():
    money = budget()
    with pytest.raises(RuntimeError):
        async with money.hold(CALL, purpose="a", endpoint="e"):
            raise RuntimeError
    assert money.decide(Spending(tokens=100)) is Admission.GRANTED


def test_money_needs_a_price():
    money = Budget(BudgetSettings(max_usd=1.0, prices={"known": Price(input_usd_per_mtok=1, output_usd_per_mtok=2)}))
    money.require_price("known")
    with pytest.raises(UserError, match="no price for model 'unknown'"):
        money.require_price("unknown")


def test_cost_is_price_times_tokens():
    money = Budget(BudgetSettings(max_usd=1.0, prices={"m": Price(input_usd_per_mtok=1, output_usd_per_mtok=2)}))
    assert money.cost("m", 500_000, 250_000) == Spending(tokens=750_000, usd=1.0)
    assert money.decide(money.cost("m", 500_000, 250_001)) is Admission.EXHAUSTED
