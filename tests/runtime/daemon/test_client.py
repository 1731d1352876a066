"""The commands' side of the line to a daemon."""

from __future__ import annotations

import socket
import threading

import anyio

from runtime.daemon.client import DaemonClient
from runtime.daemon.place import Address

_PATIENCE_S = 10.0
"""Only a client that does not hang up keeps the server waiting for so long."""
_STREAM = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n{"kind":"started"}\r\n1\r\n\n\r\n'


class QuietDaemon:
    """Says one line to who follows a job, and then nothing until that one hangs up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self.left = ""
        """Who ended the line: `client`, or `nobody` for long."""

    def _serve(self) -> None:
        line, _ = self._listener.accept()
        with line:
            line.settimeout(_PATIENCE_S)
            line.recv(4096)
            line.sendall(_STREAM)
            try:
                self.left = "client" if line.recv(1) == b"" else "unclear"
            except TimeoutError:
                self.left = "nobody"

    def __enter__(self) -> Address:
        self._thread.start()
        return Address(url=f"http://127.0.0.1:{self._listener.getsockname()[1]}", token="", owner="")

    def __exit__(self, *exc: object) -> None:
        self._thread.join()
        self._listener.close()


async def test_who_stops_following_a_quiet_job_hangs_up_at_once():
    seen, first = [], anyio.Event()
    daemon = QuietDaemon()

    async def follow(address: Address) -> None:
        async for line in DaemonClient(address).follow("jobs", "j1", "events"):
            seen.append(line)
            first.set()

    with daemon as address, anyio.fail_after(4 * _PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(follow, address)
            await first.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert seen == [{"kind": "started"}]
    assert daemon.left == "client"
