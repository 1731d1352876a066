"""`termloom gc`: removes the sandboxes that nobody owns any more, of this machine's engines.

Invariants:
- Only what an engine's inventory lists is removed; a sandbox of a live process is left unless its run is named and its
  owner is dead, or `--all` is given.
- Every engine that can be used is looked at, whichever the settings prefer: leftovers do not follow settings.
- Nothing is built for it: an engine is opened without its base environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, NoReturn

import anyio.to_thread
import msgspec
from cyclopts import Parameter

from runtime.options import Common
from runtime.settings import Settings
from sandbox.engine import Engine
from sandbox.errors import EngineFault, EngineUnavailable, SandboxError
from sandbox.reaper import Reaped, reap
from sandbox.spec import SandboxRecord


async def gc(
    *,
    run: str | None = None,
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
    common: Common = Common(),
) -> int:
    """Remove sandboxes whose process is gone or whose time is over.

    Args:
        run: Only those of this run.
        all_: Also those of processes that still work: their episodes end as lost.
    """
    settings = common.settings()
    if common.dry_run:
        return common.show(settings)
    now, done = time.time(), dict[str, Reaped]()
    async with _engines(settings) as engines:
        for engine, left in engines:
            reaped = await _remove_all(engine, run) if all_ else await reap(engine, now=now, run_id=run)
            # Opening the daemonless engine clears what dead owners left: it counts as removed here.
            there = {record.sandbox_id for record in await engine.inventory()}
            told = {record.sandbox_id for record in reaped.removed}
            opened = tuple(r for r in left if r.sandbox_id not in there | told)
            done[engine.name] = Reaped(removed=(*opened, *reaped.removed), failed=reaped.failed)
    return _show(done, as_json=common.json)


async def _remove_all(engine: Engine, run: str | None) -> Reaped:
    removed, failed = [], []
    for record in await engine.inventory():
        if run in (None, record.run_id):
            try:
                await engine.remove(record.sandbox_id)
                removed.append(record)
            except SandboxError as error:
                failed.append((record, str(error)))
    return Reaped(removed=tuple(removed), failed=tuple(failed))


@asynccontextmanager
async def _engines(settings: Settings) -> AsyncIterator[list[tuple[Engine, list[SandboxRecord]]]]:
    """Every engine that can be used here, entered, with what it held before that.

    Raises: EngineUnavailable when there is none.
    """
    from sandbox.docker import DockerEngine
    from sandbox.namespace.engine import NamespaceEngine
    from sandbox.namespace.leases import Leases

    url, state, reasons = settings.sandbox.docker_url or None, settings.paths.state, list[str]()
    async with AsyncExitStack() as stack:
        engines: list[tuple[Engine, list[SandboxRecord]]] = []
        if reason := await DockerEngine.probe(url):
            reasons.append(f"docker: {reason}")
        else:
            engines.append((await stack.enter_async_context(DockerEngine(base=_no_base, url=url)), []))
        if reason := await anyio.to_thread.run_sync(NamespaceEngine.probe):
            reasons.append(f"namespace: {reason}")
        else:
            state.mkdir(parents=True, exist_ok=True)
            left = await anyio.to_thread.run_sync(Leases(state / "sandboxes").all)
            engine = NamespaceEngine(state_dir=state, rootfs=state, trusted=None)
            engines.append((await stack.enter_async_context(engine), left))
        if not engines:
            raise EngineUnavailable("any", "; ".join(reasons), "Run it as the user who started the sandboxes")
        yield engines


async def _no_base(_packages: tuple[str, ...]) -> NoReturn:
    raise EngineFault("docker", "base", "nothing is started while leftovers are removed")


def _show(done: dict[str, Reaped], *, as_json: bool) -> int:
    failed = any(reaped.failed for reaped in done.values())
    if as_json:
        engines = {name: msgspec.to_builtins(reaped) for name, reaped in done.items()}
        sys.stdout.write(json.dumps({"kind": "result", "engines": engines}) + "\n")
        return int(failed)
    for name, reaped in done.items():
        for record in reaped.removed:
            sys.stdout.write(f"{name}: removed {record.sandbox_id} ({record.purpose}, run {record.run_id})\n")
        for record, reason in reaped.failed:
            sys.stdout.write(f"{name}: {record.sandbox_id} is still there: {reason}\n")
        sys.stdout.write(f"{name}: {len(reaped.removed)} removed, {len(reaped.failed)} left\n")
    return int(failed)
