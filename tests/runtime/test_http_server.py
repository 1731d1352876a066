"""The server on loopback: what an application raises is a 500, and goes where its process wants it."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from runtime.http_server import serving
from runtime.logs import logging_to


async def breaks(_: object):
    raise KeyError("a bug")


async def ask_broken(**options: str) -> int:
    def exchange(port: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status
        finally:
            connection.close()

    with anyio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(Starlette(routes=[Route("/", breaks)]), listener, **options):
            return await anyio.to_thread.run_sync(exchange, listener.getsockname()[1])


async def test_a_bug_is_in_the_log_of_a_process_that_keeps_one(tmp_path: Path):
    with logging_to(tmp_path / "log.jsonl"):
        assert await ask_broken(faults="logged") == 500
    (line,) = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert "KeyError: 'a bug'" in line["exception"]


async def test_a_bug_prints_nothing_elsewhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with logging_to(tmp_path / "log.jsonl"):
        assert await ask_broken() == 500
    assert (tmp_path / "log.jsonl").read_text() == ""
    assert capfd.readouterr() == ("", "")
