"""The one place that speaks aiodocker: connects, bounds every call, and maps its faults to ours.

Invariants:
- No call is without a deadline: an engine that hangs (dockerd can, for good) becomes an `EngineFault`.
- The connector is ours and unlimited: each attached stream holds a connection, and aiodocker's own stops at a hundred.
- `DockerError`, `aiohttp.ClientError` and `OSError` do not leave `answering`.

aiodocker wraps part of the engine's API, and its streams cannot close the standard input alone: `request` reaches the
rest of the API through the same session, `end_input` and `drop` the transport of a stream. Nothing else touches its
insides.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from sandbox.errors import EngineFault, EngineUnavailable, SandboxLost

if TYPE_CHECKING:
    import aiohttp

ENGINE = "docker"
CALL_S = 30.0
"""A call that reads or writes little."""
CREATE_S = 90.0
"""Create, start, kill, delete: seconds under load."""
TRANSFER_S = 180.0
"""Archives, commits and imports."""
REMOVE_S = 180.0
"""A removal that nobody may cancel, with its turn at the gate. What takes longer is left to the reaper."""
DEFAULT_SOCKET = "/var/run/docker.sock"

Query = Mapping[str, str] | Sequence[tuple[str, str]]


class Absent(EngineFault):
    """The engine holds no such container path, image or volume. Caught by who asked; a fault like any other beyond."""


class Conflict(EngineFault):
    """Something else of the engine's stands against it: a container on the image that is to go."""


def engine_url(url: str | None) -> str:
    """The address to use: `url`, else DOCKER_HOST, else the default socket."""
    return url or os.environ.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"


@contextmanager
def answering(operation: str, timeout_s: float, *, sandbox_id: str | None = None) -> Iterator[None]:
    """Bound a call and map its faults.

    Raises: EngineFault, Absent, Conflict; SandboxLost when the engine says that the container of `sandbox_id` is gone
    or stopped.
    """
    import aiohttp
    from aiodocker import DockerError

    try:
        with anyio.fail_after(timeout_s):
            yield
    except TimeoutError:
        raise EngineFault(ENGINE, operation, f"no answer within {timeout_s:g} s") from None
    except DockerError as error:
        if sandbox_id is not None and _says_gone(error.status, error.message):
            raise SandboxLost(sandbox_id, error.message) from error
        raise _FAULTS.get(error.status, EngineFault)(ENGINE, operation, error.message) from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineFault(ENGINE, operation, str(error) or type(error).__name__) from error


_FAULTS: Mapping[int, type[EngineFault]] = {404: Absent, 409: Conflict}


def _says_gone(status: int, message: str) -> bool:
    if status == 404:
        return "No such container: " in message or "No such exec" in message
    return status in {409, 500} and any(
        word in message for word in ("not running", "is paused", "stopped", "marked for removal")
    )


class Client:
    """A connection to one engine. Use as an async context manager."""

    def __init__(self, url: str | None) -> None:
        self.url = engine_url(url)
        self._docker: Any = None
        self._connector: aiohttp.BaseConnector | None = None

    async def __aenter__(self) -> Self:
        import aiodocker
        import aiohttp

        self._connector, address = _connector(self.url)
        self._docker = aiodocker.Docker(
            url=address, connector=self._connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._docker.close()
            if self._connector is not None:
                await self._connector.close()
            await anyio.lowlevel.checkpoint()  # closed transports let go of their sockets in the loop's next round

    @property
    def docker(self) -> Any:
        """The aiodocker client; every use of it stands in `answering`."""
        assert self._docker is not None, "the client is used outside its context"
        return self._docker

    @asynccontextmanager
    async def request(
        self, method: str, path: str, query: Query = (), *, data: Any = None, content_type: str = "application/json"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request of the engine's API; the response is closed at the end. Stands in `answering`."""
        import aiohttp
        from yarl import URL

        response: aiohttp.ClientResponse
        async with self.docker._query(
            URL(path).with_query(query),
            method=method,
            data=io.BytesIO(data) if isinstance(data, bytes) else data,
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        ) as response:
            try:
                yield response
            finally:
                response.close()

    async def ask(self, method: str, path: str, query: Query = (), *, data: Mapping[str, Any] | None = None) -> Any:
        """A request whose body and answer are JSON, or nothing. Stands in `answering`."""
        body = None if data is None else json.dumps(data)
        async with self.request(method, path, query, data=body) as response:
            text = await response.read()
            return json.loads(text) if text.strip() else None

    def attach(self, exec_id: str) -> Any:
        """The stream of an exec that was created without a terminal; the first read or write starts it."""
        from aiodocker.execs import Exec

        return Exec(self.docker, exec_id, tty=False).start()


def end_input(stream: Any) -> None:
    """Close the standard input of an attached stream and leave its outputs open. Nothing happens on a closed one."""
    if (transport := _transport(stream)) is not None:
        transport.write_eof()


async def drop(stream: Any) -> None:
    """Let go of an attached stream at once; what was written and not yet sent is discarded. Idempotent."""
    if (transport := _transport(stream)) is not None:
        transport.abort()
    await stream.close()


def _transport(stream: Any) -> Any:
    connection = stream._resp.connection if stream._resp is not None else None
    return connection.transport if connection is not None else None


async def json_lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The objects of a progress or event stream, lines of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield json.loads(line)


def _connector(url: str) -> tuple[aiohttp.BaseConnector, str]:
    """A connector without limit, and the address as aiodocker wants it.

    TLS is refused: Python cannot half close a TLS connection, so that no process would ever see the end of its input.
    """
    import aiohttp

    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return aiohttp.UnixConnector(rest, limit=0), "unix://localhost"
    if scheme in ("tcp", "http") and os.environ.get("DOCKER_TLS_VERIFY") != "1":
        return aiohttp.TCPConnector(limit=0), f"http://{rest}"
    raise EngineUnavailable(
        ENGINE,
        f"the address {url!r} is neither a unix socket nor plain tcp",
        "Forward its socket (ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST) and use that by its unix:// path.",
    )


async def probe(url: str | None) -> str | None:
    """None when an engine answers at the address, else the reason why it cannot be used."""
    try:
        async with Client(url) as client:
            with answering("asking for the version", 10.0):
                about = await client.ask("GET", "version")
            if about.get("Os") != "linux":
                return f"the engine at {client.url} runs {about.get('Os')} containers"
    except (EngineFault, EngineUnavailable) as fault:
        return f"{fault.reason} ({engine_url(url)})"
    return None
