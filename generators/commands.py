"""The commands of this package: `generate`, `demonstrate`, `verify`, `taxonomy`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.daemon.client import DaemonClient, find_client
from runtime.options import Common
from runtime.settings import Settings


async def generate(
    *,
    count: int | None = None,
    seed: int | None = None,
    out: Path = Path("tasks"),
    author: Literal["procedural", "chat"] | None = None,
    sandbox: Literal["auto", "docker", "namespace"] | None = None,
    base_url: str | None = None,
    model: str | None = None,
    attempts: int | None = None,
    band: str | None = None,
    band_base_url: str | None = None,
    band_model: str | None = None,
    overlap: Path | None = None,
    level: Annotated[list[int] | None, Parameter(negative="")] = None,
    category: Annotated[list[str] | None, Parameter(negative="")] = None,
    family: Annotated[list[str] | None, Parameter(negative="")] = None,
    quotas: Path | None = None,
    style: Literal["exact", "conversational", "brief", "vague", "terse"] | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    common: Common = Common(),
) -> int:
    """Generate verified tasks: drawn, written, built, solved, certified.

    Args:
        count: How many tasks.
        seed: Everything random derives from it.
        out: Directory for the tasks: new or empty, or with --resume that of an unfinished run.
        author: Who writes them: task families that need no model, or a chat endpoint.
        sandbox: Which engine runs the containers.
        base_url: The chat endpoint.
        model: The chat endpoint's model.
        attempts: Solving attempts per task at most.
        band: Only tasks with a pass rate in this band, as 1/8..7/8, over all attempts; they end once that is certain.
        band_base_url: The endpoint of the policy that the band is about. Without it, the author's solver.
        band_model: That policy's model.
        overlap: Word n-grams of benchmarks, one a line, that no task may hold.
        level: Only tasks of this level, 1 to 10; may be repeated.
        category: Only tasks of this category; may be repeated.
        family: Only tasks of this task family; may be repeated.
        quotas: TOML file of [[quotas]]: count, and any of category, complexity, tier, family; the rest is drawn freely.
        style: How instructions are worded; `terse` is one short sentence a job, for small policies.
        resume: Go on with the run that writes into --out.
    """
    given: dict[str, object] = {
        "generate.count": count,
        "generate.seed": seed,
        "generate.author": author,
        "generate.attempts": attempts,
        "generate.band": band,
        "generate.overlap": overlap,
        "generate.levels": None if level is None else json.dumps(level),
        "generate.categories": None if category is None else json.dumps(category),
        "generate.families": None if family is None else json.dumps(family),
        "generate.quotas": _quotas(quotas),
        "generate.style": style,
        "sandbox.engine": sandbox,
        "chat.base_url": base_url,
        "chat.model": model,
        "band.base_url": band_base_url,
        "generate.band_model": band_model,
    }
    settings = common.settings(options=given)
    if common.dry_run:
        return common.show(settings)
    names = {key.removeprefix("generate.") for key, value in given.items() if value is not None}
    if not common.here and (client := find_client(settings.paths.state)):
        return await _generate_there(client, settings, out, resume=resume, given=names, as_json=common.json)
    return await _generate(settings, out, resume=resume, given=names, as_json=common.json)


async def _generate_there(
    client: DaemonClient, settings: Settings, out: Path, *, resume: bool, given: set[str], as_json: bool
) -> int:
    import msgspec

    from generators.outdir import place_of
    from generators.report import show_summary
    from generators.stages import STAGES
    from generators.summary import Summary
    from runtime.daemon.follow import submit_and_follow
    from runtime.runner import RunResult

    place = place_of(out, settings.paths.state)
    job = await submit_and_follow(
        client,
        "generate",
        settings=settings,
        options={"out": str(place.out), "resume": resume, "given": sorted(given)},
        stages=[stage.name for stage in STAGES],
        as_json=as_json,
    )
    summary = msgspec.convert(job.result["summary"], Summary)
    return show_summary(summary, msgspec.convert(job.result, RunResult), place, as_json=as_json)


async def _generate(settings: Settings, out: Path, *, resume: bool, given: set[str], as_json: bool) -> int:
    from generators.outdir import place_of, prepare
    from generators.report import show_summary
    from generators.run import check, run_generation
    from generators.stages import STAGES
    from runtime.engines import open_settings_engine
    from runtime.interrupts import interrupts
    from runtime.progress import show_progress
    from sandbox.reaper import reap

    place = place_of(out, settings.paths.state)
    check(settings)
    prepare(place, resume=resume)
    with interrupts(cleanup=f"termloom gc --run {place.run_id}") as stop:
        async with open_settings_engine(settings, say) as engine:
            await reap(engine, now=time.time(), run_id=place.run_id)
            async with show_progress([stage.name for stage in STAGES], json=as_json) as on_event:
                result, summary = await run_generation(
                    settings,
                    place,
                    engine=engine,
                    on_event=on_event,
                    given=given,
                    announce=lambda runner: stop.on_drain(runner.drain),
                )
    return show_summary(summary, result, place, as_json=as_json)


async def demonstrate(
    *,
    out: Path,
    count: int = 4000,
    seed: int = 0,
    slips: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.0,
    level: Annotated[list[int] | None, Parameter(negative="")] = None,
    family: Annotated[list[str] | None, Parameter(negative="")] = None,
    without: Annotated[list[Path] | None, Parameter(negative="")] = None,
    common: Common = Common(),
) -> int:
    """Write demonstrations of the basics, for a policy that starts from nothing.

    Args:
        out: The file of trajectories, one a line.
        count: How many demonstrations, at most.
        seed: Everything random derives from it.
        slips: Probability that a step is one of its typical mistakes, unnoticed.
        level: Only tasks of this level; may be repeated. Without it, level 1.
        family: Only tasks of this basic family; may be repeated.
        without: Folder of tasks that are to be measured on: none of them is demonstrated; may be repeated.
    """
    if common.dry_run:
        return common.show(common.settings())
    from generators.demonstrate import write_demonstrations

    written, mistakes = write_demonstrations(
        out,
        count=count,
        seed=seed,
        slips=slips,
        levels=level or [1],
        families=family or [],
        without=without or [],
    )
    say(f"{written} demonstrations with {mistakes} mistakes in {out}")
    return 0


async def verify(*directories: Path, common: Common = Common()) -> int:
    """Earn the certificates of task directories again, in fresh sandboxes; try out tasks made elsewhere.

    Args:
        directories: Task directories, or directories of a finished run with all its tasks.
    """
    settings = common.settings()
    if common.dry_run:
        return common.show(settings)
    from generators.report import show_verification
    from generators.verify import verify_all
    from runtime.engines import open_settings_engine
    from runtime.errors import UserError

    if not directories:
        raise UserError("verify", "no directory is named", "Give one or more task directories")
    async with open_settings_engine(settings, say) as engine:
        problems = await verify_all(directories, engine=engine, settings=settings)
    return show_verification(problems, as_json=common.json)


async def taxonomy(*, tasks: Path | None = None, quotas: Path | None = None, common: Common = Common()) -> int:
    """Show what tasks can be about, and how a folder of tasks covers it.

    Args:
        tasks: A folder of task directories.
        quotas: TOML file of [[quotas]] to hold the tasks against; by default those of the settings.
    """
    settings = common.settings(options={"generate.quotas": _quotas(quotas)})
    if common.dry_run:
        return common.show(settings)
    from generators.report import show_taxonomy

    return show_taxonomy(tasks, settings.generate.quotas, as_json=common.json)


def _quotas(path: Path | None) -> str | None:
    """A quota file as the setting that it stands for. Raises: UserError."""
    if path is None:
        return None
    from generators.quota import load_quotas

    return json.dumps([quota.model_dump() for quota in load_quotas(path)])


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
