"""Synthesis as a job of the daemon: the same run that the command carries out by itself.

Episodes travel with their task inside; tasks are read and trajectories filed in the daemon, which has the directories.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from generators.outdir import MANIFEST, RunPlace, place_of, prepare
from generators.synthesis.outputs import Shelf
from generators.synthesis.run import COMMAND, check, open_troupe, run_synthesis, task_directories
from generators.synthesis.stages import STAGES, SynthesisContext
from runtime.chat.endpoint import require_one_ledger
from runtime.daemon.kind import JobKind, JobPlace, JobWork, Travel
from runtime.errors import UserError
from runtime.limits import Limits
from runtime.settings import Settings, SynthesizeSettings
from runtime.store import Store
from sandbox.engine import Engine


def _check(settings: Settings, options: Mapping[str, Any]) -> None:
    check(settings)
    for name in ("tasks", "out"):
        if not Path(str(options.get(name, ""))).is_absolute():
            raise UserError(name, "is no absolute path", f"Name the directory of the {name}")
    task_directories(Path(options["tasks"]))
    _require_one_ledger(settings, settings.synthesize)
    prepare(_place(settings, options), resume=bool(options.get("resume")))


def _require_one_ledger(settings: Settings, ours: SynthesizeSettings) -> None:
    require_one_ledger(settings, *(["chat"] if ours.author == "chat" else []))


def _place(settings: Settings, options: Mapping[str, Any]) -> RunPlace:
    return place_of(Path(str(options.get("out", ""))), settings.paths.state, COMMAND)


def _job_place(settings: Settings, options: Mapping[str, Any]) -> JobPlace:
    place = _place(settings, options)
    return JobPlace(run_id=place.run_id, store=place.store, out=place.out)


async def _run(work: JobWork) -> dict[str, Any]:
    place = _place(work.settings, work.options)
    if work.begun:
        (place.out / MANIFEST).unlink(missing_ok=True)  # the set is not complete any more, if it was
        prepare(place, resume=place.store.exists())
    outcome = await run_synthesis(
        work.settings,
        place,
        task_directories(Path(str(work.options["tasks"]))),
        engine=work.engine,
        on_event=work.on_event,
        given=[str(name) for name in work.options.get("given", ())],
        announce=work.announce,
        limits=work.limits,
        stages=work.stages,
    )
    return {**msgspec.to_builtins(outcome.result), "outcome": msgspec.to_builtins(outcome)}


def _recorded(context: SynthesisContext) -> str:
    return context.settings.model_dump_json()


@asynccontextmanager
async def _worker(
    settings: Settings, run_id: str, recorded: str, engine: Engine, limits: Limits
) -> AsyncIterator[SynthesisContext]:
    """What the stages are given in a process that only works: its model calls have a ledger of their own."""
    ours, place = SynthesizeSettings.model_validate_json(recorded), settings.paths.state / "work"
    _require_one_ledger(settings, ours)
    async with Store(place / f"{run_id}.sqlite") as store, open_troupe(ours, settings, store) as troupe:
        context = SynthesisContext(
            engine=engine,
            limits=limits,
            troupe=troupe,
            settings=ours,
            run_id=run_id,
            shelf=await anyio.to_thread.run_sync(Shelf, place / run_id),
        )
        try:
            yield context
        finally:
            await context.images.release_all(engine)


JOB = JobKind(
    name=COMMAND,
    stages=STAGES,
    check=_check,
    place=_job_place,
    run=_run,
    travel=Travel(stages=("enact",), recorded=_recorded, worker=_worker),
)
