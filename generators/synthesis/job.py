"""Synthesis as a job of the daemon: the same run that the command carries out by itself.

Its work stays in the daemon: an episode reads the task's directory, which other machines do not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from generators.outdir import MANIFEST, RunPlace, place_of, prepare
from generators.synthesis.run import COMMAND, check, run_synthesis, task_directories
from generators.synthesis.stages import STAGES
from runtime.daemon.kind import JobKind, JobPlace, JobWork
from runtime.errors import UserError
from runtime.settings import Settings


def _check(settings: Settings, options: Mapping[str, Any]) -> None:
    check(settings)
    for name in ("tasks", "out"):
        if not Path(str(options.get(name, ""))).is_absolute():
            raise UserError(name, "is no absolute path", f"Name the directory of the {name}")
    task_directories(Path(options["tasks"]))
    prepare(_place(settings, options), resume=bool(options.get("resume")))


def _place(settings: Settings, options: Mapping[str, Any]) -> RunPlace:
    return place_of(Path(str(options["out"])), settings.paths.state, COMMAND)


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
    )
    return {**msgspec.to_builtins(outcome.result), "outcome": msgspec.to_builtins(outcome)}


JOB = JobKind(name=COMMAND, stages=STAGES, check=_check, place=_job_place, run=_run)
