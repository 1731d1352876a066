"""Servers that several test modules talk to."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import absent


class NatsServer:
    """A NATS server with JetStream on a free port, which can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._directory = directory
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        place = ["--store_dir", str(self._directory), "--addr", "127.0.0.1", "--port", str(self._port)]
        self._child = subprocess.Popen(["nats-server", "--jetstream", *place], stderr=subprocess.PIPE, text=True)
        if not any("Server is ready" in line for line in self._child.stderr):
            pytest.fail(f"nats-server ended with {self._child.wait()}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._child.send_signal(how)
        self._child.wait(timeout=60)
        self._child.stderr.close()  # not before its end: what it says of that would kill it


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    if shutil.which("nats-server") is None:
        absent("no nats-server on the path")
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url
