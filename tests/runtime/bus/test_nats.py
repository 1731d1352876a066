"""The NATS bus against a real server."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from nats.errors import TimeoutError as NatsTimeout

from runtime.bus.nats import NatsBus
from runtime.bus.protocol import Bus, QueueOptions
from runtime.errors import BusClosed, BusSilent, UserError
from tests.runtime.bus.contract import PATIENCE_S, BusContract, take
from tests.runtime.conftest import NatsServer

pytestmark = pytest.mark.nats


def unheard_once(call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """`call` as it is while the server restarts: the first time there is no answer."""
    answers = iter([NatsTimeout()])

    async def asked(*given: Any, **options: Any) -> object:
        for silence in answers:
            raise silence
        return await call(*given, **options)

    return asked


class TestNatsBus(BusContract):
    lease_s = 2.0

    @pytest.fixture(autouse=True)
    def own_prefix(self, nats_url: str) -> None:
        self.url, self.prefix = nats_url, f"t{uuid.uuid4().hex[:8]}"

    def open(self) -> AbstractAsyncContextManager[Bus]:
        return NatsBus(self.url, prefix=self.prefix)

    async def test_two_processes_share_a_queue_and_survive_each_other(self):
        async with self.open() as ours:
            await ours.declare("work", self.options())
            async with self.open() as theirs:
                await theirs.declare("work", self.options())
                await theirs.publish("work", b"x", key="a")
                await ours.publish("work", b"y", key="a")
                async with theirs.consume("work", slots=1) as deliveries:
                    assert (await take(deliveries)).attempt == 1
            async with ours.consume("work", slots=1) as deliveries:
                again = await take(deliveries)
                assert (again.body, again.attempt) == (b"x", 2)
                await again.ack()

    async def test_room_made_by_another_process_is_heard(self):
        async with self.open() as ours, self.open() as theirs:
            for bus in (ours, theirs):
                await bus.declare("work", self.options(capacity=1))
            await ours.publish("work", b"", key="a")
            async with anyio.create_task_group() as group, theirs.consume("work", slots=1) as deliveries:

                async def publish():
                    await ours.publish("work", b"", key="b")

                group.start_soon(publish)
                for key in ("a", "b"):
                    delivery = await take(deliveries)
                    assert delivery.key == key
                    await delivery.ack()

    async def test_a_queue_declared_again_with_other_options_takes_them(self):
        async with self.open() as bus:
            await bus.declare("work", self.options(capacity=1))
            await bus.declare("work", self.options(capacity=2))
            with anyio.fail_after(PATIENCE_S):
                await bus.publish("work", b"", key="a")
                await bus.publish("work", b"", key="b")

    async def test_a_settled_big_body_leaves_the_object_store(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", bytes(2 << 20), key="big")
            stored = await bus.jetstream.object_store(f"{self.prefix}-work-bodies")
            assert len(await stored.list()) == 1
            async with bus.consume("work", slots=1) as deliveries:
                await (await take(deliveries)).ack()
            status = await bus.jetstream.stream_info(f"OBJ_{self.prefix}-work-bodies")
            assert status.state.bytes < 1 << 20

    async def test_a_withdrawn_big_body_leaves_the_object_store_unless_somebody_was_handed_it(self):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            for key in ("taken", "left"):
                await bus.publish("work", bytes(2 << 20), key=key)
            stream = f"OBJ_{self.prefix}-work-bodies"
            async with bus.consume("work", slots=1) as deliveries:
                taken = await take(deliveries)
                for key in ("taken", "left"):
                    await bus.withdraw("work", key=key)
                assert 2 << 20 <= (await bus.jetstream.stream_info(stream)).state.bytes < 3 << 20
                await taken.ack()
            assert (await bus.jetstream.stream_info(stream)).state.bytes < 1 << 20

    async def test_a_server_that_does_not_answer_keeps_what_is_withdrawn(self, monkeypatch: pytest.MonkeyPatch):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            monkeypatch.setattr(bus.jetstream, "get_last_msg", unheard_once(bus.jetstream.get_last_msg))
            assert not await bus.untaken("work", key="a")
            assert await bus.untaken("work", key="a")
            monkeypatch.setattr(bus.jetstream, "get_last_msg", unheard_once(bus.jetstream.get_last_msg))
            await bus.withdraw("work", key="a")
            assert (await bus.state("work")).ready == 1
            await bus.withdraw("work", key="a")
            assert (await bus.state("work")).ready == 0

    async def test_a_server_that_is_gone_says_nothing_of_a_queue_until_it_is_back(self, nats_server: NatsServer):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            nats_server.stop()
            try:
                with anyio.fail_after(PATIENCE_S), pytest.raises(BusSilent, match=r"queue 'work'.*timeout"):
                    await bus.state("work")
            finally:
                await anyio.to_thread.run_sync(nats_server.start)
            await bus.publish("work", b"", key="b")  # waits until the client has found it
            assert (await bus.state("work")).ready == 2
        with pytest.raises(BusClosed):
            await bus.state("work")

    async def test_a_server_that_restarts_loses_nothing(self, nats_server: NatsServer):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="before")
            async with bus.consume("work", slots=3) as deliveries:
                held = await take(deliveries)
                nats_server.stop()
                async with anyio.create_task_group() as group:

                    async def publish():
                        await bus.publish("work", b"", key="meanwhile")

                    group.start_soon(publish)
                    await anyio.to_thread.run_sync(nats_server.start)
                    meanwhile = await take(deliveries)
                assert (held.key, meanwhile.key) == ("before", "meanwhile")
                await held.ack()
                await meanwhile.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased) == (0, 0)

    async def test_a_mark_that_a_restarting_server_does_not_hear_keeps_no_message_back(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async def unheard(*_: object, **__: object) -> None:
            raise NatsTimeout

        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", b"", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                monkeypatch.setattr(bus.jetstream, "publish", unheard)
                monkeypatch.setattr(bus.jetstream, "purge_stream", unheard)
                await delivery.nack(0.01)
                again = await take(deliveries)
                assert again.attempt == 2
                await again.ack()

    async def test_a_big_body_that_a_restarting_server_does_not_hand_out_comes_with_the_next_delivery(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=2.0))
            await bus.publish("work", bytes(2 << 20), key="big")
            monkeypatch.setattr(bus.jetstream, "object_store", unheard_once(bus.jetstream.object_store))
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                assert (len(delivery.body), delivery.attempt) == (2 << 20, 2)
                await delivery.ack()

    async def test_a_big_body_waits_for_a_restarting_server(self, monkeypatch: pytest.MonkeyPatch):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            create = unheard_once(bus.jetstream.create_object_store)
            monkeypatch.setattr(bus.jetstream, "create_object_store", create)
            await bus.publish("work", bytes(2 << 20), key="big")
            async with bus.consume("work", slots=1) as deliveries:
                assert len((await take(deliveries)).body) == 2 << 20

    async def test_a_settled_big_body_that_a_restarting_server_does_not_forget_is_left_there(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async with self.open() as bus:
            await bus.declare("work", self.options())
            await bus.publish("work", bytes(2 << 20), key="big")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                monkeypatch.setattr(bus.jetstream, "object_store", unheard_once(bus.jetstream.object_store))
                await delivery.ack()
            state = await bus.state("work")
            assert (state.ready, state.leased) == (0, 0)

    async def test_a_big_body_whose_settlement_is_not_heard_is_there_for_the_next_delivery(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=1.0))
            await bus.publish("work", bytes(2 << 20), key="big")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                with monkeypatch.context() as patched:
                    patched.setattr(bus.client, "request", unheard_once(bus.client.request))
                    await delivery.ack()
                again = await take(deliveries)
                assert (len(again.body), again.attempt) == (2 << 20, 2)
                await again.ack()

    async def test_a_consumer_leaves_a_server_that_hears_nothing(self, monkeypatch: pytest.MonkeyPatch):
        async def unheard(*_: object, **__: object) -> None:
            raise NatsTimeout

        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=self.lease_s))
            await bus.publish("work", bytes(2 << 20), key="big")
            with monkeypatch.context() as patched:
                async with bus.consume("work", slots=2) as deliveries:
                    await take(deliveries)
                    await bus.publish("work", bytes(2 << 20), key="bigger")
                    while not deliveries._arrived:
                        await deliveries._changed.wait(1.0)
                    patched.setattr(bus.jetstream, "object_store", unheard)
                    patched.setattr(bus.client, "flush", unheard)
            async with bus.consume("work", slots=2) as deliveries:
                assert {(await take(deliveries)).key for _ in range(2)} == {"big", "bigger"}

    async def test_a_dead_letter_that_a_restarting_server_does_not_hear_is_a_message_delivered_again(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        async with self.open() as bus:
            await bus.declare("work", self.options(lease_s=self.lease_s))
            await bus.publish("work", b"poison", key="a")
            async with bus.consume("work", slots=1) as deliveries:
                delivery = await take(deliveries)
                monkeypatch.setattr(bus.jetstream, "publish", unheard_once(bus.jetstream.publish))
                await delivery.reject("no such tool")
                again = await take(deliveries)
                assert (again.key, again.attempt) == ("a", 2)
                await again.reject("no such tool")
            (letter,) = await bus.dead_letters("work")
            assert (letter.key, letter.body) == ("a", b"poison")

    async def test_a_name_that_is_no_token_is_refused(self):
        async with self.open() as bus:
            with pytest.raises(ValueError, match="letters, digits"):
                await bus.declare("a.b", QueueOptions())


async def test_no_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.bus.nats.CONNECT_S", 0.2)
    with pytest.raises(UserError, match="no NATS server answers"):
        async with NatsBus("nats://127.0.0.1:1"):
            pass
