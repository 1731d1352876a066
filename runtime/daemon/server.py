"""The daemon: one engine, one set of limits, many jobs, and an HTTP interface to all of it.

Invariants:
- The first signal drains (what is in work finishes, the rest is on disk), the second cancels and still cleans up.
- It answers until its last job has ended; streams end with the jobs they follow.
- Nothing listens beyond loopback without a token that somebody chose.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import anyio
from starlette.applications import Starlette

from runtime.causes import first_cause
from runtime.daemon.api import Api
from runtime.daemon.auth import LEAST_TOKEN, Guard
from runtime.daemon.jobs import Jobs
from runtime.daemon.place import announced, directory, sole_daemon
from runtime.daemon.records import JobRecords
from runtime.daemon.spread import open_spread
from runtime.daemon.state import Reporter
from runtime.dashboard.pages import Pages
from runtime.engines import open_settings_engine
from runtime.errors import UserError
from runtime.events import fan_out
from runtime.http_server import serving
from runtime.interrupts import interrupts
from runtime.limits import Limits
from runtime.logs import logging_to
from runtime.metrics import Metrics
from runtime.settings import DaemonSettings, Settings
from runtime.watchdog import LagGauge
from sandbox.engine import Engine
from sandbox.reaper import reap

_PULSE_S = 1.0


async def run_daemon(settings: Settings, *, say: Callable[[str], None]) -> None:
    """Serve until a signal drains it. Raises: UserError, EngineUnavailable, StoreError."""
    state = settings.paths.state
    with sole_daemon(state), logging_to(directory(state) / "log.jsonl"), interrupts(cleanup="termloom gc") as stop:
        async with open_settings_engine(settings, say) as engine:
            await reap(engine, now=time.time())
            try:
                await _serve(settings, engine, say=say, on_drain=stop.on_drain)
            except BaseExceptionGroup as group:
                raise first_cause(group) from group
    say("stopped; what is unfinished goes on at the next start")


async def _serve(
    settings: Settings,
    engine: Engine,
    *,
    say: Callable[[str], None],
    on_drain: Callable[[Callable[[], None]], None],
) -> None:
    limits, lag, metrics = Limits(settings.limits.sizes()), LagGauge(), Metrics()
    async with AsyncExitStack() as stack:
        spread = await stack.enter_async_context(open_spread(settings, engine, limits))
        records = JobRecords(directory(settings.paths.state) / "jobs")
        jobs = Jobs(
            settings,
            records,
            engine=engine,
            limits=limits,
            spread=spread.stages_for,
            listen=fan_out(metrics.listen, spread.listen),
            on_call=metrics.called,
        )
        reporter = Reporter(jobs, engine=engine, limits=limits, lag=lag, queues=spread.queues)
        metrics.watch(reporter)
        api = Api(jobs, reporter, limits, drain=jobs.drain)
        pages = Pages(jobs=jobs, reporter=reporter)
        app = Starlette(routes=[*api.routes(), *metrics.routes(), *pages.routes()])
        listener, url, token = stack.enter_context(_listening(settings.daemon))
        guard = Guard(app, token=token or None, hosts=_hosts(settings.daemon, listener))
        await stack.enter_async_context(serving(guard, listener, faults="logged"))
        stack.enter_context(announced(settings.paths.state, url=url, token=token))
        say(f"listening: {url}{f'/?token={token}' if token else ''}")
        await _work(jobs, lag, on_drain)


async def _work(jobs: Jobs, lag: LagGauge, on_drain: Callable[[Callable[[], None]], None]) -> None:
    async def measure() -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(_PULSE_S)
            lag.add(time.monotonic() - before - _PULSE_S)

    async with anyio.create_task_group() as group:
        group.start_soon(measure)
        on_drain(jobs.drain)
        await jobs.run()
        group.cancel_scope.cancel()


@contextmanager
def _listening(settings: DaemonSettings) -> Iterator[tuple[socket.socket, str, str]]:
    """The listener, its address, and the token over TCP. Raises: UserError."""
    if settings.socket is not None:
        path = settings.socket.absolute()
        with _bound_file(str(path)) as listener:
            yield listener, f"unix:{path}", ""
        return
    token = settings.token.get_secret_value()
    if token and len(token) < LEAST_TOKEN:
        raise UserError("daemon.token", f"is shorter than {LEAST_TOKEN} characters", "Choose a longer one")
    if not token and not _is_loopback(settings.host):
        raise UserError(
            "daemon.host", f"{settings.host} is reached by other machines, and no token is set", "Set daemon.token"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=4096)
    except OSError as error:
        remedy = "Choose another daemon.port; 0 takes any free one"
        raise UserError(f"daemon.port {settings.port}", error.strerror or str(error), remedy) from None
    with listener:
        host = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
        yield listener, f"http://{host}:{listener.getsockname()[1]}", token or secrets.token_urlsafe(24)


@contextmanager
def _bound_file(path: str) -> Iterator[socket.socket]:
    """A Unix socket that only this user may open. What a dead daemon left there is replaced."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            Path(path).unlink(missing_ok=True)
            mask = os.umask(0o177)
            try:
                listener.bind(path)
            finally:
                os.umask(mask)
        except OSError as error:
            raise UserError("daemon.socket", f"{path}: {error.strerror or error}", "Choose another path") from None
        listener.listen(4096)
        try:
            yield listener
        finally:
            Path(path).unlink(missing_ok=True)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts(settings: DaemonSettings, listener: socket.socket) -> set[str]:
    """The values of Host that name this daemon."""
    if listener.family == socket.AF_UNIX:
        return set()
    port = listener.getsockname()[1]
    names = {"localhost", "127.0.0.1", "[::1]"} if _is_loopback(settings.host) else {settings.host}
    return {f"{name}:{port}" for name in names} | {f"{name}:{port}" for name in settings.names} | set(settings.names)
