"""Servers that several test modules talk to."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server with JetStream on a free port; its log says when it is ready."""
    if shutil.which("nats-server") is None:
        pytest.skip("no nats-server on the path")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path_factory.mktemp("nats")
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
