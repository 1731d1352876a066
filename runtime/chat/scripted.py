"""An OpenAI-compatible chat server that says what a script tells it: the test double for every endpoint.

    async with ScriptedServer([Reply(text="<command>ls</command>"), Fault(status=429, retry_after="1")]) as server:
        async with ChatClient(base_url=server.base_url, api_key="none", model="any") as client:
            ...

It is a real HTTP server on loopback, in the caller's event loop, in a task group of its own. It installs no signal
handlers and polls nothing; leaving the context ends every stalled or delayed call at once. What happened stands in
`calls` (by purpose), `requests`, `in_flight`, `max_in_flight` and `paid`: an answer is paid when it was handed to a
client that had not left.

By hand: `python -m runtime.chat.scripted --rules FILE [--port N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import AsyncContextManagerMixin
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runtime.chat.messages import DRAW_HEADER, PURPOSE_HEADER, estimate_tokens
from runtime.chat.script import Fault, LogNormal, Reply, Script, load_rules, rendered_prompt, responder
from runtime.http_server import serving

MODEL = "scripted"


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    number: int
    purpose: str
    draw: str
    """The nonce, percent-encoded."""
    id: str
    """Of this try: `<call>-<number of the try>`."""
    body: dict[str, Any]

    @property
    def call(self) -> str:
        """Name of the call, the same for all its tries: the beginning of its key in the client's ledger."""
        return self.id.rpartition("-")[0]


class ScriptedServer(AsyncContextManagerMixin):
    """Serves one script. Use as an async context manager; port 0 takes any free port."""

    def __init__(self, script: Script, *, latency: LogNormal | None = None, port: int = 0) -> None:
        self.calls: Counter[str] = Counter()
        self.paid: list[Seen] = []
        self.requests: list[Seen] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self._respond = responder(script)
        self._latency = latency
        self._port = port
        self._closing = anyio.Event()

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        with socket.create_server(("127.0.0.1", self._port), backlog=4096) as listener:
            self._port = listener.getsockname()[1]
            async with serving(self._app(), listener):
                try:
                    yield self
                finally:
                    self._closing.set()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/models", _models, methods=["GET"]),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        seen = _seen(request, len(self.requests) + 1, json.loads(await request.body()))
        self.requests.append(seen)
        self.calls[seen.purpose] += 1
        with self._counted():
            said = self._respond(seen.body, seen.number)
            await self._pause(request, said.delay_s + self._latency_s(seen))
            if isinstance(said, Fault):
                return await self._fail(said, seen, request)
            if not await request.is_disconnected():
                self.paid.append(seen)
            return JSONResponse(_completion(said, seen))

    def _latency_s(self, seen: Seen) -> float:
        return self._latency.of(seen.id or str(seen.number)) if self._latency else 0.0

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1

    async def _pause(self, request: Request, delay_s: float) -> None:
        """Wait, but not beyond the server's own end, nor for a client that has left."""
        if delay_s <= 0:
            return
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                await request.receive()  # after the body nothing but the end of the connection can come
                group.cancel_scope.cancel()

            group.start_soon(leave)
            with anyio.move_on_after(delay_s):
                await self._closing.wait()
            group.cancel_scope.cancel()

    async def _fail(self, fault: Fault, seen: Seen, request: Request) -> Response:
        if fault.kind == "stall":
            await self._pause(request, math.inf)
        if fault.kind == "cut":
            return _Cut(json.dumps(_completion(Reply(text="never arrives in full"), seen)).encode())
        error = {"message": fault.message, "type": "scripted", "code": fault.code or None}
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        return JSONResponse({"error": error}, status_code=fault.status or 500, headers=headers)


class _Cut(Response):
    """Announces the whole body, sends half of it and drops the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body[: len(self.body) // 2], "more_body": True})


def _seen(request: Request, number: int, body: dict[str, Any]) -> Seen:
    headers = request.headers
    return Seen(
        number=number,
        purpose=headers.get(PURPOSE_HEADER, ""),
        draw=headers.get(DRAW_HEADER, ""),
        id=headers.get("X-Request-Id", ""),
        body=body,
    )


async def _models(_request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}]})


def _completion(reply: Reply, seen: Seen) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool:
        function = {"name": reply.tool, "arguments": reply.arguments}
        message["tool_calls"] = [{"id": f"call_{seen.number}", "type": "function", "function": function}]
    document = {
        "id": f"scripted-{seen.number}",
        "object": "chat.completion",
        "created": 0,
        "model": seen.body.get("model", MODEL),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish}],
    }
    return {**document, "usage": _usage(reply, seen)} if reply.usage else document


def _usage(reply: Reply, seen: Seen) -> dict[str, int]:
    prompt = reply.prompt_tokens or estimate_tokens(rendered_prompt(seen.body))
    completion = reply.completion_tokens or estimate_tokens(reply.text + reply.reasoning + reply.arguments)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _serve(rules: Path, port: int) -> None:
    async with ScriptedServer(load_rules(rules), port=port) as server:
        print(server.base_url, flush=True)
        await anyio.sleep_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a rules file until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m runtime.chat.scripted", description="A scripted chat endpoint.")
    parser.add_argument("--rules", type=Path, required=True, help="TOML file, see runtime/chat/script.py")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(_serve, options.rules, options.port)


if __name__ == "__main__":
    main()
