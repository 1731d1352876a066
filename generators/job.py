"""Generation as a job of the daemon: the same run that the command carries out by itself, in the daemon's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from generators.context import GenerationContext
from generators.images import HeldImages
from generators.outdir import MANIFEST, RunPlace, place_of, prepare
from generators.run import Begun, check, open_players, run_generation
from generators.stages import STAGES
from runtime.chat.endpoint import require_one_ledger
from runtime.daemon.kind import JobKind, JobPlace, JobWork, Travel
from runtime.errors import UserError
from runtime.limits import Limits
from runtime.settings import Settings
from runtime.store import Store
from sandbox.engine import Engine

_KEPT = 64
"""Items whose images a worker keeps at most. Which of them come to it once more, and which have ended elsewhere, it
cannot know; with this many, an image that is in work goes seldom, and is built again."""


def _check(settings: Settings, options: Mapping[str, Any]) -> None:
    check(settings)
    if not Path(str(options.get("out", ""))).is_absolute():
        raise UserError("out", "is no absolute path", "Name the directory that the tasks go to")
    require_one_ledger(settings, *_endpoints(settings))
    prepare(_place(settings, options), resume=bool(options.get("resume")))


def _endpoints(settings: Settings) -> list[str]:
    """Sections of the endpoints that stages which travel ask."""
    asked = {"chat": settings.generate.author == "chat", "band": bool(settings.generate.band_model)}
    return [section for section, is_asked in asked.items() if is_asked]


def _place(settings: Settings, options: Mapping[str, Any]) -> RunPlace:
    return place_of(Path(str(options.get("out", ""))), settings.paths.state)


def _job_place(settings: Settings, options: Mapping[str, Any]) -> JobPlace:
    place = _place(settings, options)
    return JobPlace(run_id=place.run_id, store=place.store, out=place.out)


async def _run(work: JobWork) -> dict[str, Any]:
    place = _place(work.settings, work.options)
    if work.begun:
        (place.out / MANIFEST).unlink(missing_ok=True)  # the set is not complete any more, if it was
        prepare(place, resume=place.store.exists())
    result, summary = await run_generation(
        work.settings,
        place,
        engine=work.engine,
        on_event=work.on_event,
        given=[str(name) for name in work.options.get("given", ())],
        announce=work.announce,
        limits=work.limits,
        stages=work.stages,
    )
    return {**msgspec.to_builtins(result), "summary": msgspec.to_builtins(summary)}


def _recorded(context: GenerationContext) -> str:
    return Begun(generate=context.settings, agent=context.agent).model_dump_json()


@asynccontextmanager
async def _worker(
    settings: Settings, run_id: str, recorded: str, engine: Engine, limits: Limits
) -> AsyncIterator[GenerationContext]:
    """What the stages are given in a process that only works: its model calls have a ledger of their own."""
    began = Begun.model_validate_json(recorded)
    settings = began.over(settings)
    require_one_ledger(settings, *_endpoints(settings))
    async with (
        Store(settings.paths.state / "work" / f"{run_id}.sqlite") as store,
        open_players(began.generate, settings, store) as players,
    ):
        context = GenerationContext(
            engine=engine,
            limits=limits,
            players=players,
            settings=began.generate,
            agent=began.agent,
            run_id=run_id,
            seed=began.generate.seed,
            out=settings.paths.state / "work" / run_id,
            images=HeldImages(most=_KEPT),
        )
        try:
            yield context
        finally:
            await context.images.release_all(engine)


JOB = JobKind(
    name="generate",
    stages=STAGES,
    check=_check,
    place=_job_place,
    run=_run,
    travel=Travel(stages=("furnish", "examine", "solve", "certify"), recorded=_recorded, worker=_worker),
)
