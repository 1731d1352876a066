"""What every bus promises. A subclass gives the bus; every test here runs against each implementation.

Nothing sleeps: where time must pass, a test waits for the delivery that the passing of time brings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runtime.bus.protocol import Bus, Delivery, QueueOptions
from runtime.errors import BusClosed

PATIENCE_S = 60.0
"""Only a hanging test waits for so long."""


async def take(deliveries: AsyncIterator[Delivery]) -> Delivery:
    with anyio.fail_after(PATIENCE_S):
        return await anext(deliveries)


class BusContract:
    lease_s: float
    """Short, but many times as long as the round trips within one, whatever else the machine does."""

    def open(self) -> AbstractAsyncContextManager[Bus]:
        raise NotImplementedError

    def options(self, **changes: object) -> QueueOptions:
        return QueueOptions(**{"capacity": 8, "lease_s": PATIENCE_S, "max_attempts": 3, **changes})

    async def test_a_message_is_delivered_with_its_key_and_body(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"\x00body\xff", key="work/a b.c*>1")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                assert (delivery.key, delivery.body, delivery.attempt) == ("work/a b.c*>1", b"\x00body\xff", 1)
                await delivery.ack()
            assert (await bus.state("work")).ready == 0

    async def test_messages_come_in_the_order_of_publishing(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for n in range(5):
                await bus.publish("work", bytes([n]), key=f"k{n}")
            async with bus.consume("work", slots=5) as deliveries:
                got = [await take(deliveries) for _ in range(5)]
                assert [d.body[0] for d in got] == [0, 1, 2, 3, 4]
                for delivery in got:
                    await delivery.ack()

    async def test_a_key_is_queued_once_while_queued_leased_and_settled(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"1", key="a")
            await bus.publish("work", b"2", key="a")
            async with bus.consume("work", slots=2) as deliveries:
                first = await take(deliveries)
                await bus.publish("work", b"3", key="a")
                await first.ack()
                await bus.publish("work", b"4", key="a")
                await bus.publish("work", b"next", key="b")
                second = await take(deliveries)
                assert (first.body, second.body) == (b"1", b"next")
                await second.ack()

    async def test_one_message_goes_to_one_consumer(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for n in range(4):
                await bus.publish("work", b"", key=f"k{n}")
            async with bus.consume("work", slots=2) as left, bus.consume("work", slots=2) as right:
                got = [await take(left), await take(right), await take(left), await take(right)]
                assert sorted(d.key for d in got) == ["k0", "k1", "k2", "k3"]
                for delivery in got:
                    await delivery.ack()

    async def test_no_more_than_the_slots_are_delivered_unsettled(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for n in range(3):
                await bus.publish("work", b"", key=f"k{n}")
            got: list[Delivery] = []
            third = anyio.Event()

            async def consume(deliveries):
                async for delivery in deliveries:
                    got.append(delivery)
                    if len(got) == 3:
                        third.set()

            async with bus.consume("work", slots=2) as deliveries, anyio.create_task_group() as group:
                group.start_soon(consume, deliveries)
                with anyio.fail_after(PATIENCE_S):
                    while (await bus.state("work")).leased < 2:
                        await checkpoint()
                for _ in range(20):  # time enough to take a third
                    await checkpoint()
                    state = await bus.state("work")
                assert (state.leased, state.ready, third.is_set()) == (2, 1, False)
                await got[0].ack()
                with anyio.fail_after(PATIENCE_S):
                    await third.wait()
                group.cancel_scope.cancel()

    async def test_a_full_queue_makes_publish_wait_until_there_is_room(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=2))
            published: list[int] = []
            done = anyio.Event()

            async def publish():
                for n in range(4):
                    await bus.publish("work", b"", key=f"k{n}")
                    published.append(n)
                done.set()

            async with anyio.create_task_group() as group:
                group.start_soon(publish)
                async with bus.consume("work", slots=1) as deliveries:
                    for settled in range(4):
                        delivery = await take(deliveries)
                        assert len(published) <= settled + 2
                        await delivery.ack()
                with anyio.fail_after(PATIENCE_S):
                    await done.wait()
            assert published == [0, 1, 2, 3]

    async def test_all_who_wait_for_room_get_it(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=2))
            async with anyio.create_task_group() as group, bus.consume("work", slots=2) as deliveries:
                for n in range(12):
                    group.start_soon(partial(bus.publish, "work", b"", key=f"k{n}"))
                got = set()
                for _ in range(12):
                    delivery = await take(deliveries)
                    got.add(delivery.key)
                    await delivery.ack()
            assert got == {f"k{n}" for n in range(12)}

    async def test_a_nack_delivers_again_with_the_next_attempt(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"x", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                await (await take(deliveries)).nack()
                again = await take(deliveries)
                assert (again.key, again.body, again.attempt) == ("a", b"x", 2)
                await again.ack()

    async def test_a_delayed_nack_lets_others_pass(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="slow")
            await bus.publish("work", b"", key="quick")
            async with bus.consume("work", slots=1) as deliveries:
                await (await take(deliveries)).nack(PATIENCE_S)
                quick = await take(deliveries)
                assert (quick.key, quick.attempt) == ("quick", 1)
                await quick.ack()

    async def test_a_delayed_nack_delivers_again_when_the_delay_is_over(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                before = anyio.current_time()
                await (await take(deliveries)).nack(0.3)
                again = await take(deliveries)
                assert (again.key, again.attempt) == ("a", 2)
                state = await bus.state("work")
                assert (state.ready, state.leased, state.delayed) == (0, 1, 0)
                assert anyio.current_time() - before >= 0.29
                await again.ack()

    async def test_a_lease_that_runs_out_delivers_again_and_the_late_ack_does_nothing(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=self.lease_s))
            await bus.publish("work", b"", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                late = await take(deliveries)
                again = await take(deliveries)
                assert (again.key, again.attempt) == ("a", 2)
                await again.nack()
                await late.ack()
                await late.reject("too late")
                assert await bus.dead_letters("work") == []
                last = await take(deliveries)
                assert last.attempt == 3
                await last.ack()

    async def test_an_extended_lease_does_not_run_out(self):
        """A second message, left alone, tells when the lease's length has passed."""
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=self.lease_s))
            await bus.publish("work", b"", key="kept")
            await bus.publish("work", b"", key="left")
            async with bus.consume("work", slots=3) as deliveries:
                kept, left = await take(deliveries), await take(deliveries)

                async def keep():
                    while True:
                        await anyio.sleep(self.lease_s / 4)
                        await kept.extend()

                async with anyio.create_task_group() as group:
                    group.start_soon(keep)
                    again = await take(deliveries)
                    assert (left.key, again.key, again.attempt) == ("left", "left", 2)
                    await again.ack()
                    await kept.ack()
                    group.cancel_scope.cancel()
            assert (await bus.state("work")).oldest_s == 0

    async def test_leaving_by_cancellation_delivers_again(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            taken = anyio.Event()

            async def consume():
                async with bus.consume("work", slots=1) as deliveries:
                    async for _ in deliveries:
                        taken.set()

            async with anyio.create_task_group() as group:
                group.start_soon(consume)
                with anyio.fail_after(PATIENCE_S):
                    await taken.wait()
                group.cancel_scope.cancel()
            async with bus.consume("work", slots=1) as deliveries:
                again = await take(deliveries)
                assert (again.key, again.attempt) == ("a", 2)
                await again.ack()

    async def test_the_last_attempt_given_back_is_a_dead_letter(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(max_attempts=2))
            await bus.publish("work", b"poison", key="a")
            await bus.publish("work", b"", key="b")
            async with bus.consume("work", slots=1) as deliveries:
                for _ in range(3):  # in whatever order
                    delivery = await take(deliveries)
                    await (delivery.nack() if delivery.key == "a" else delivery.ack())
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 1)
            (letter,) = await bus.dead_letters("work")
            assert (letter.queue, letter.key, letter.body, letter.attempts) == ("work", "a", b"poison", 2)
            assert letter.reason

    async def test_the_last_lease_that_runs_out_is_a_dead_letter(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(max_attempts=1, lease_s=self.lease_s))
            await bus.publish("work", b"poison", key="a")
            async with bus.consume("work", slots=1) as deliveries, anyio.create_task_group() as group:
                await take(deliveries)
                group.start_soon(anext, deliveries)
                with anyio.fail_after(PATIENCE_S):
                    while not (dead := await bus.dead_letters("work")):
                        await checkpoint()
                assert [(letter.key, letter.attempts) for letter in dead] == [("a", 1)]
                group.cancel_scope.cancel()

    async def test_a_rejected_message_is_a_dead_letter_with_its_reason_until_requeued(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"x", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                await (await take(deliveries)).nack()
                await (await take(deliveries)).reject("no such tool")
                (letter,) = await bus.dead_letters("work")
                assert (letter.reason, letter.attempts, letter.body) == ("no such tool", 2, b"x")
                assert (await bus.state("work")).dead == 1
                await bus.publish("work", b"y", key="a")  # a dead letter's key is not queued again
                assert await bus.requeue("work", "a")
                assert not await bus.requeue("work", "a")
                again = await take(deliveries)
                assert (again.body, again.attempt) == (b"x", 1)
                await again.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 0)

    async def test_settling_twice_does_nothing(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                await delivery.ack()
                await delivery.nack()
                await delivery.reject("changed my mind")
                await delivery.extend()
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 0)

    async def test_a_withdrawn_message_is_not_delivered_and_makes_room(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=1))
            await bus.publish("work", b"1", key="a b*>")
            await bus.withdraw("work", key="a b*>")
            await bus.withdraw("work", key="a b*>")
            await bus.withdraw("work", key="never there")
            with anyio.fail_after(PATIENCE_S):
                await bus.publish("work", b"2", key="a b*>")  # counts as settled
                await bus.publish("work", b"", key="next")
            async with bus.consume("work", slots=2) as deliveries:
                delivery = await take(deliveries)
                assert (delivery.key, delivery.attempt) == ("next", 1)
                await delivery.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 0)

    async def test_whether_a_message_was_ever_taken_can_be_asked(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for key in ("taken", "left"):
                await bus.publish("work", b"", key=key)
            async with bus.consume("work", slots=1) as deliveries:
                taken = await take(deliveries)
                asked = [await bus.untaken("work", key=key) for key in ("taken", "left", "never there")]
                assert asked == [False, True, False]
                await taken.nack()
                assert not await bus.untaken("work", key="taken")
                await (await take(deliveries)).ack()
                assert not await bus.untaken("work", key="taken")

    async def test_a_publisher_that_waits_hears_of_the_room_of_a_withdrawn_message(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=1))
            await bus.publish("work", b"", key="a")
            with anyio.fail_after(PATIENCE_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(partial(bus.publish, "work", b"", key="b"))
                    await anyio.wait_all_tasks_blocked()
                    await bus.withdraw("work", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                assert delivery.key == "b"
                await delivery.ack()

    async def test_a_message_that_waits_out_a_delay_is_withdrawn(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                await (await take(deliveries)).nack(PATIENCE_S)
                await bus.withdraw("work", key="a")
                state = await bus.state("work")
                assert (state.ready, state.leased, state.delayed) == (0, 0, 0)
                await bus.publish("work", b"", key="next")
                delivery = await take(deliveries)
                assert delivery.key == "next"
                await delivery.ack()

    async def test_a_message_withdrawn_under_lease_keeps_its_slot_and_is_not_delivered_again(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for key in ("a", "b", "c"):
                await bus.publish("work", b"", key=key)
            async with bus.consume("work", slots=2) as deliveries:
                first, second = await take(deliveries), await take(deliveries)
                for key in ("a", "b"):
                    await bus.withdraw("work", key=key)
                await first.extend()
                got: list[Delivery] = []

                async def take_third():
                    got.append(await take(deliveries))

                async with anyio.create_task_group() as group:
                    group.start_soon(take_third)
                    for _ in range(20):  # time enough to take it
                        await checkpoint()
                        state = await bus.state("work")
                    assert (state.ready, got) == (1, [])
                    await first.nack()
                (third,) = got
                assert third.key == "c"
                await third.ack()
                await second.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 0)

    async def test_a_message_withdrawn_under_lease_does_not_come_back_when_the_lease_runs_out(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=self.lease_s))
            await bus.publish("work", b"", key="a")
            await bus.publish("work", b"", key="left")
            async with bus.consume("work", slots=2) as deliveries:
                for _ in range(2):
                    await take(deliveries)
                await bus.withdraw("work", key="a")
                again = await take(deliveries)
                assert (again.key, again.attempt) == ("left", 2)
                await again.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased, state.delayed, state.dead) == (0, 0, 0, 0)

    async def test_a_body_above_a_megabyte_travels_unharmed(self):
        body = bytes(range(256)) * 8192
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", body, key="big")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                assert delivery.body == body
                await delivery.reject("look at it")
                assert (await bus.dead_letters("work"))[0].body == body
                assert await bus.requeue("work", "big")
                again = await take(deliveries)
                assert again.body == body
                await again.ack()

    async def test_the_state_tells_where_messages_are(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for n in range(3):
                await bus.publish("work", b"", key=f"k{n}")
            async with bus.consume("work", slots=2) as deliveries:
                first, second = await take(deliveries), await take(deliveries)
                await first.nack(PATIENCE_S)
                state = await bus.state("work")
                assert (state.ready, state.leased, state.delayed) == (1, 1, 1)
                assert state.oldest_s > 0
                await second.ack()

    async def test_an_unknown_queue_is_an_error(self):
        async with self.open() as bus:
            with pytest.raises(KeyError):
                await bus.publish("nowhere", b"", key="a")

    async def test_a_closed_bus_refuses(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
        with pytest.raises(BusClosed):
            await bus.publish("work", b"", key="a")
        with pytest.raises(BusClosed):
            await bus.withdraw("work", key="a")

    async def test_a_full_queue_and_many_consumers_lose_nothing(self):
        """Cancel half the consumers while they work; everything is acknowledged in the end, nothing twice."""
        total, acked = 60, []
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=5, max_attempts=100))
            all_acked = anyio.Event()

            async def consume(limit: int):
                async with bus.consume("work", slots=3) as deliveries:
                    async for delivery in deliveries:
                        limit -= 1
                        if limit < 0:
                            return  # leaves with this one unsettled
                        await delivery.ack()
                        acked.append(delivery.key)
                        if len(acked) == total:
                            all_acked.set()

            async with anyio.create_task_group() as group:
                for limit in (3, 4, 5, total):
                    group.start_soon(consume, limit)
                with anyio.fail_after(60):
                    for n in range(total):
                        await bus.publish("work", b"", key=f"k{n}")
                    await all_acked.wait()
                group.cancel_scope.cancel()
        assert sorted(acked) == sorted(f"k{n}" for n in range(total))
