"""Named limits: who holds, who waits, and since when."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runtime.limits import Limits


async def settle() -> None:
    for _ in range(5):
        await checkpoint()


async def test_holders_and_waiters_are_known_by_item_and_time():
    now = 100.0
    limits = Limits({"build": 1}, clock=lambda: now)
    release = anyio.Event()

    async def build(item: str) -> None:
        async with limits.take("build", item=item):
            await release.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(build, "a")
        await settle()
        now = 105.0
        group.start_soon(build, "b")
        await settle()
        now = 112.0
        (a,), (b,) = limits.of("a"), limits.of("b")
        assert (a.state, a.since, b.state, b.since) == ("holding", 100.0, "waiting", 105.0)
        (state,) = limits.state()
        assert (state.size, state.holding, state.waiting, state.longest_wait_s) == (1, 1, 1, 7.0)
        release.set()
    assert limits.of("a") == limits.of("b") == []


async def test_a_limit_can_grow_and_shrink_while_it_is_used():
    limits = Limits({"run": 1})
    inside: list[str] = []
    gates = {item: anyio.Event() for item in "abc"}

    async def hold(item: str) -> None:
        async with limits.take("run", item=item):
            inside.append(item)
            await gates[item].wait()
            inside.remove(item)

    async with anyio.create_task_group() as group:
        for item in "abc":
            group.start_soon(hold, item)
        await settle()
        assert inside == ["a"]
        limits.resize("run", 2)
        await settle()
        assert inside == ["a", "b"]
        limits.resize("run", 1)
        gates["a"].set()
        await settle()
        assert inside == ["b"]
        gates["b"].set()
        await settle()
        assert inside == ["c"]
        gates["c"].set()


async def test_a_cancelled_wait_leaves_no_trace():
    limits = Limits({"run": 1})
    async with limits.take("run", item="a"):
        with anyio.move_on_after(0):
            async with limits.take("run", item="b"):
                pytest.fail("there was no room")
        assert limits.of("b") == []
    async with limits.take("run", item="c"):
        assert [claim.state for claim in limits.of("c")] == ["holding"]


async def test_an_unknown_limit_is_an_error():
    with pytest.raises(KeyError):
        async with Limits({}).take("run", item="a"):
            pass


async def test_a_share_that_came_late_is_not_kept_waiting_by_a_long_queue():
    limits, order = Limits({"run": 2}), list[str]()
    long, late = limits.share("long"), limits.share("late")

    async def use(share: Limits, name: str) -> None:
        async with share.take("run", item=name):
            order.append(name)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(use, long, f"long-{number}")
        await anyio.lowlevel.checkpoint()
        group.start_soon(use, late, "late")
    assert order.index("late") <= 3
    assert [name for name in order if name != "late"] == [f"long-{number}" for number in range(6)]
    assert limits.state()[0].holding == 0


async def test_a_wait_that_is_cancelled_in_the_moment_of_admission_gives_the_place_back():
    limits = Limits({"run": 1})
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                async with limits.take("run", item="b"):
                    await anyio.sleep_forever()

        async with limits.take("run", item="a"):
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        scope.cancel()
    with anyio.fail_after(10):
        async with limits.take("run", item="c"):
            pass
