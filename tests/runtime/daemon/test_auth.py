"""Who is let in, over a real server on loopback: token, Host, Origin, cookie, size of bodies, headers of answers."""

from __future__ import annotations

import http.client
import socket
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from runtime.daemon.auth import MOST_BODY, Guard
from runtime.http_server import serving

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def echo(request):
    return PlainTextResponse(f"let in with {len(await request.body())} bytes")


@asynccontextmanager
async def guarded(token: str | None = TOKEN):
    app = Starlette(routes=[Route("/page", echo, methods=["GET", "POST"])])
    with anyio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        async with serving(Guard(app, token=token, hosts={host, "loom.example"}), listener):
            yield partial(ask, host)


async def ask(host: str, method: str = "GET", path: str = "/page", body: bytes | None = None, **headers: str):
    def exchange():
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(exchange)


async def test_only_the_right_token_is_let_in():
    async with guarded() as ask:
        assert (await ask())[0] == 401
        assert (await ask(Authorization="Bearer wrong"))[0] == 401
        assert (await ask(Authorization=f"Basic {TOKEN}"))[0] == 401
        assert (await ask(Cookie="termloom=wrong"))[0] == 401
        assert (await ask(**BEARER))[0] == 200
        assert (await ask(Cookie=f"termloom={TOKEN}"))[0] == 200


async def test_a_token_in_the_address_becomes_a_cookie_and_leaves_it():
    async with guarded() as ask:
        status, headers, _ = await ask(path=f"/page?token={TOKEN}&a=1")
        assert (status, headers["location"]) == (303, "/page?a=1")
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=strict" in headers["set-cookie"]
        assert (await ask(path="/page?token=wrong"))[0] == 401
        assert (await ask("POST", path=f"/page?token={TOKEN}"))[0] == 401


async def test_the_redirect_never_leaves_the_daemon():
    async with guarded() as ask:
        _, headers, _ = await ask(path=f"//evil.example/?token={TOKEN}")
        assert headers["location"].startswith("/evil.example")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
async def test_another_name_is_refused_even_with_the_token(host):
    async with guarded() as ask:
        assert (await ask(Host=host, **BEARER))[0] == 421
        assert (await ask(Host="loom.example", **BEARER))[0] == 200


async def test_another_page_is_refused_even_with_the_cookie():
    async with guarded() as ask:
        cookie = {"Cookie": f"termloom={TOKEN}", "Host": "loom.example"}
        for origin in ("http://evil.example", "null", "http://loom.example.evil.example"):
            assert (await ask("POST", Origin=origin, **cookie))[0] == 403
        assert (await ask("POST", Origin="http://loom.example", **cookie))[0] == 200
        assert (await ask(Sec_Fetch_Site="cross-site", **cookie))[0] == 403


async def test_every_answer_is_hardened_and_none_allows_another_origin():
    async with guarded() as ask:
        for _, headers, _ in (await ask(), await ask(**BEARER), await ask(path="/nowhere", **BEARER)):
            assert "script-src 'self'" in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers


async def test_a_body_beyond_the_limit_is_refused():
    async with guarded() as ask:
        assert (await ask("POST", body=b"x" * MOST_BODY, **BEARER))[2] == f"let in with {MOST_BODY} bytes"
        assert (await ask("POST", body=b"x" * (MOST_BODY + 1), **BEARER))[0] == 413


async def test_a_unix_socket_asks_for_nothing():
    async with guarded(token=None) as ask:
        assert (await ask(Host="anything"))[0] == 200
