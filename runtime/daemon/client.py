"""Speaks to the daemon of a state directory, for the commands.

One connection a request, in a worker thread: the standard library's client is enough, and knows Unix sockets when told.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import anyio.to_thread

from runtime.daemon.place import Address, find_daemon
from runtime.errors import RuntimeFault, UserError

_ANSWER_S = 60.0
_BAD_REQUEST = 400


class DaemonError(RuntimeFault):
    """The daemon does not answer, or says that something is wrong with it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the daemon at {url}: {reason}. See its log in the state directory")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DaemonClient:
    """Requests to one daemon. Methods raise UserError for what the caller did wrong, else DaemonError."""

    def __init__(self, address: Address) -> None:
        self.url = address.url
        self._token = address.token

    async def get(self, *path: str) -> Any:
        return await self._ask("GET", path, None)

    async def post(self, *path: str, body: Any = None) -> Any:
        return await self._ask("POST", path, body if body is not None else {})

    async def follow(self, *path: str) -> AsyncIterator[dict[str, Any]]:
        """The objects of a stream, one a line."""
        connection = self._connection()
        try:
            response = await anyio.to_thread.run_sync(partial(self._send, connection, "GET", path, None))
            while line := await self._line(response):
                if line.strip():
                    yield json.loads(line)
        finally:
            _hang_up(connection)

    async def _line(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return await anyio.to_thread.run_sync(response.readline, abandon_on_cancel=True)
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(self.url, f"the connection was lost ({error})") from None

    async def _ask(self, method: str, path: tuple[str, ...], body: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(self._exchange, method, path, body))

    def _exchange(self, method: str, path: tuple[str, ...], body: Any) -> Any:
        connection = self._connection()
        try:
            return json.loads(self._send(connection, method, path, body).read())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return _UnixConnection(parts.path, _ANSWER_S)
        return http.client.HTTPConnection(parts.netloc, timeout=_ANSWER_S)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: tuple[str, ...], body: Any
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, "/api/" + "/".join(quote(part, safe="") for part in path), data, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(self.url, f"does not answer ({error})") from None
        if response.status == http.client.OK:
            return response
        text = response.read().decode(errors="replace")
        if response.status == _BAD_REQUEST:
            told = json.loads(text)
            raise UserError(told["where"], told["problem"], told["remedy"])
        raise DaemonError(self.url, f"HTTP {response.status}: {text.strip()}")


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """Close at once: a thread that still reads is woken first, else closing would wait for what it reads."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def find_client(state: Path) -> DaemonClient | None:
    """A client of the live daemon of a state directory."""
    address = find_daemon(state)
    return DaemonClient(address) if address else None


def require_client(state: Path) -> DaemonClient:
    """Raises: UserError when no daemon works there."""
    client = find_client(state)
    if client is None:
        raise UserError(str(state), "no daemon works there", "Start one with termloom serve")
    return client
