"""The NATS bus against a real server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from runtime.bus.nats import NatsBus
from runtime.bus.protocol import Bus, QueueOptions
from runtime.errors import UserError
from tests.runtime.bus.contract import BusContract, take

pytestmark = [
    pytest.mark.nats,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="no nats-server on the path"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with JetStream on a free port; it says on its log when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory: Path = tmp_path_factory.mktemp("nats")
    command = ["nats-server", "--jetstream", "--store_dir", str(directory), "--addr", "127.0.0.1", "--port", str(port)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in child.stderr:
            if "Server is ready" in line:
                break
        else:
            pytest.fail(f"nats-server ended with {child.wait()}")
        yield f"nats://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.stderr.close()
        child.wait(timeout=20)


class TestNatsBus(BusContract):
    lease_s = 0.4

    @pytest.fixture(autouse=True)
    def own_prefix(self, server: str) -> None:
        self.url, self.prefix = server, f"t{uuid.uuid4().hex[:8]}"

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
            with anyio.fail_after(20):
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

    async def test_a_name_that_is_no_token_is_refused(self):
        async with self.open() as bus:
            with pytest.raises(ValueError, match="letters, digits"):
                await bus.declare("a.b", QueueOptions())


async def test_no_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.bus.nats.CONNECT_S", 0.2)
    with pytest.raises(UserError, match="no NATS server answers"):
        async with NatsBus("nats://127.0.0.1:1"):
            pass
