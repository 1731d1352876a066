"""`termloom work`: a process that works for a daemon over the bus, with an engine and limits of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from runtime.bus.open import open_bus
from runtime.causes import first_cause
from runtime.daemon.spread import PREFIX, declare_work
from runtime.daemon.worker import Worker
from runtime.engines import open_settings_engine
from runtime.errors import UserError
from runtime.interrupts import interrupts
from runtime.limits import Limits
from runtime.logs import logging_to
from runtime.settings import Settings
from sandbox.reaper import reap


async def join_daemon(settings: Settings, *, say: Callable[[str], None]) -> None:
    """Work until a signal drains it. Raises: UserError, EngineUnavailable, BusClosed."""
    if not settings.daemon.bus:
        raise UserError("daemon.bus", "is not set", "Give --bus nats://HOST:PORT, the same as the daemon's")
    state = settings.paths.state
    with logging_to(state / "work" / "log.jsonl"), interrupts(cleanup="termloom gc") as stop:
        async with (
            open_settings_engine(settings, say) as engine,
            open_bus(settings.daemon.bus, prefix=PREFIX) as bus,
        ):
            await reap(engine, now=time.time())
            await declare_work(bus)
            worker = Worker(bus, settings, engine=engine, limits=Limits(settings.limits.sizes()))
            stop.on_drain(worker.drain)
            say(f"working for {settings.daemon.bus}")
            try:
                await worker.run()
            except BaseExceptionGroup as group:
                raise first_cause(group) from group
    say(f"stopped after {worker.done} pieces of work")
