"""A NATS server for one measurement, on a directory that goes with it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nats_server(url: str = "", *, address: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server: the one given, else of a fresh one that listens at `address`."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="termloom-nats-") as directory:
        command = ["nats-server", "--jetstream", "--store_dir", directory, "--addr", address, "--port", "-1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                yield f"nats://{address}:{_port(server.stderr)}"
            finally:
                server.terminate()


def _port(log: Iterator[str]) -> int:
    port = 0
    for line in log:
        if "Listening for client connections" in line:
            port = int(line.rpartition(":")[2])
        if "Server is ready" in line:
            return port
    raise RuntimeError("nats-server ended before it was ready")
