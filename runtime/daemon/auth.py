"""Who may talk to the daemon, checked before anything else looks at a request.

Invariants:
- Over TCP every request carries the token, on loopback too: other users of the machine reach loopback as well. A Unix
  socket carries none: the file's mode says who may open it.
- A request whose Host is not one of ours is refused (a page elsewhere that rebinds its name gets nothing), and so is
  one whose Origin is not the page we served. No answer ever allows another origin.
- Every answer tells the browser to run no script, style or frame but ours, to tell no other site where it was, and to
  keep no copy.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "termloom"
LEAST_TOKEN = 16
MOST_BODY = 1 << 20
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware. `token` None: a Unix socket, where `hosts` do not matter either."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Collection[str]) -> None:
        self._app, self._token, self._hosts = app, token, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._refusal(scope)
        if answer is not None:
            await answer(scope, receive, _hardened(send))
        else:
            await self._app(scope, _bounded(receive), _hardened(send))

    def _refusal(self, scope: Scope) -> Response | None:
        if self._token is None:
            return None
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return _refused(421, "this name is not the daemon's; add it to daemon.names if it is")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host:
            return _refused(403, "requests from other pages are not answered")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _refused(403, "requests from other pages are not answered")
        if int(headers.get("content-length") or 0) > MOST_BODY:
            return _refused(413, "the body is too large")
        return self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        offered = dict(query).get("token")
        if offered is not None and scope["method"] == "GET":
            return self._welcome(scope, query) if self._fits(offered) else _refused(401, "the token is wrong")
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        if (scheme.lower() == "bearer" and self._fits(bearer)) or (cookie and self._fits(cookie.value)):
            return None
        return _refused(401, "no token; open the address that `termloom serve` printed")

    def _welcome(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Token out of the address, into a cookie that no script reads and no other site sends."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        target = "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else "")
        answer = RedirectResponse(target, status_code=303)
        answer.set_cookie(COOKIE, self._token or "", httponly=True, samesite="strict", path="/")
        return answer

    def _fits(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode(), (self._token or "").encode())


def _refused(status: int, reason: str) -> Response:
    return PlainTextResponse(f"termloom: {reason}\n", status_code=status)


def _hardened(send: Send) -> Send:
    async def harden(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return harden


def _bounded(receive: Receive) -> Receive:
    """A body that does not say how long it is ends at the limit all the same."""
    seen = 0

    async def bound() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= MOST_BODY else {"type": "http.disconnect"}

    return bound
