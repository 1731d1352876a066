"""The command `synthesize`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from runtime.daemon.client import DaemonClient, find_client
from runtime.options import Common
from runtime.settings import Settings


async def synthesize(
    *,
    tasks: Path = Path("tasks"),
    out: Path = Path("trajectories"),
    seed: int | None = None,
    repeats: int | None = None,
    author: Literal["procedural", "chat"] | None = None,
    error_rate: float | None = None,
    tau: float | None = None,
    parquet: Annotated[bool, Parameter(negative="")] = False,
    sandbox: Literal["auto", "docker", "namespace"] | None = None,
    base_url: str | None = None,
    model: str | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    common: Common = Common(),
) -> int:
    """Make trajectories with planted mistakes and real recoveries from task directories.

    Args:
        tasks: A folder of task directories, or one of them.
        out: Directory for the trajectories: new or empty, or with --resume that of an earlier run.
        seed: Everything random derives from it.
        repeats: Trajectories for each task.
        author: Who plays: what is known of the task, which needs no model, or a chat endpoint.
        error_rate: Probability that a step is meant to be a mistake.
        tau: Least share of tests passed for the training export; may differ from resume to resume.
        parquet: Also write a data set in the Hugging Face layout.
        sandbox: Which engine runs the containers.
        base_url: The chat endpoint.
        model: The chat endpoint's model.
        resume: Go on with the run that writes into --out; when it is finished, export again.
    """
    given: dict[str, object] = {
        "synthesize.seed": seed,
        "synthesize.repeats": repeats,
        "synthesize.author": author,
        "synthesize.error_rate": error_rate,
        "export.tau": tau,
        "export.parquet": parquet or None,
        "sandbox.engine": sandbox,
        "chat.base_url": base_url,
        "chat.model": model,
    }
    settings = common.settings(options=given)
    if common.dry_run:
        return common.show(settings)
    names = {key.removeprefix("synthesize.") for key, value in given.items() if value is not None}
    if not common.here and (client := find_client(settings.paths.state)):
        return await _synthesize_there(client, settings, tasks, out, resume=resume, given=names, as_json=common.json)
    return await _synthesize(settings, tasks, out, resume=resume, given=names, as_json=common.json)


async def _synthesize_there(
    client: DaemonClient, settings: Settings, tasks: Path, out: Path, *, resume: bool, given: set[str], as_json: bool
) -> int:
    import msgspec

    from generators.outdir import place_of
    from generators.synthesis.report import show_outcome
    from generators.synthesis.run import COMMAND, Outcome
    from generators.synthesis.stages import STAGES
    from runtime.daemon.follow import submit_and_follow

    place = place_of(out, settings.paths.state, COMMAND)
    job = await submit_and_follow(
        client,
        COMMAND,
        settings=settings,
        options={"tasks": str(tasks.absolute()), "out": str(place.out), "resume": resume, "given": sorted(given)},
        stages=[stage.name for stage in STAGES],
        as_json=as_json,
    )
    return show_outcome(msgspec.convert(job.result["outcome"], Outcome), place, as_json=as_json)


async def _synthesize(
    settings: Settings, tasks: Path, out: Path, *, resume: bool, given: set[str], as_json: bool
) -> int:
    from generators.commands import say
    from generators.outdir import place_of, prepare
    from generators.synthesis.report import show_outcome
    from generators.synthesis.run import COMMAND, check, run_synthesis, task_directories
    from generators.synthesis.stages import STAGES
    from runtime.engines import open_settings_engine
    from runtime.interrupts import interrupts
    from runtime.progress import show_progress
    from sandbox.reaper import reap

    place, directories = place_of(out, settings.paths.state, COMMAND), task_directories(tasks)
    check(settings)
    prepare(place, resume=resume)
    with interrupts(cleanup=f"termloom gc --run {place.run_id}") as stop:
        async with open_settings_engine(settings, say) as engine:
            await reap(engine, now=time.time(), run_id=place.run_id)
            async with show_progress([stage.name for stage in STAGES], json=as_json) as on_event:
                outcome = await run_synthesis(
                    settings,
                    place,
                    directories,
                    engine=engine,
                    on_event=on_event,
                    given=given,
                    announce=lambda runner: stop.on_drain(runner.drain),
                )
    return show_outcome(outcome, place, as_json=as_json)
