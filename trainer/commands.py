"""The commands of this package: `rollout`, `train`, `evaluate`, `compare`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from runtime.daemon.client import DaemonClient, find_client
from runtime.errors import UserError
from runtime.options import Common
from runtime.settings import Settings
from sandbox.engine import Engine
from trainer.screen import say, show_estimate, show_evaluation, show_trained, tell_step, write, write_json

if TYPE_CHECKING:
    from runtime.limits import Limits
    from trainer.asked import PlayAsked, TrainAsked
    from trainer.recipe import Recipe

Sandbox = Literal["auto", "docker", "namespace"]
Repeated = Annotated[list[str] | None, Parameter(negative="")]
Paths = Annotated[list[Path] | None, Parameter(negative="")]


async def train(
    recipe: Path,
    *,
    tasks: Paths = None,
    held_out: Paths = None,
    demonstrations: Paths = None,
    model: Path | None = None,
    engine_url: Repeated = None,
    out: Path = Path("runs/train"),
    sandbox: Sandbox | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    common: Common = Common(),
) -> int:
    """Train a policy by a recipe: fine-tuning, asynchronous PPO, measured before and after.

    Args:
        recipe: A TOML file, such as those in recipes/.
        tasks: Task directories, or folders of them, to train on; may be repeated.
        held_out: Task directories, or folders of them, to measure on; may be repeated.
        demonstrations: Trajectories, one JSON object a line, to fine-tune on; may be repeated.
        model: Hugging Face directory to start from, instead of the recipe's.
        engine_url: A running SGLang server; may be repeated.
        out: Directory of the run.
        sandbox: Which engine runs the containers.
        resume: Go on with the run in --out.
    """
    settings = common.settings(options={"sandbox.engine": sandbox})
    import msgspec

    from trainer.arena import find_tasks
    from trainer.recipe import load_recipe

    asked = load_recipe(recipe)
    found = tuple(find_tasks(tasks or ()))
    if common.dry_run:
        named = model or (Path(asked.model.path) if asked.model.path else None)
        return show_estimate(asked, recipe, named, len(found), as_json=common.json)
    from trainer.parallel import in_team, is_follower

    if is_follower():
        from trainer.follow import follow

        return follow()
    source = model or _model(asked, "--model")
    if asked.ppo is not None and not found:
        raise UserError("--tasks", "PPO needs tasks to train on", "Give a folder of them: termloom generate makes one")
    from trainer.asked import TrainAsked

    wanted = TrainAsked(
        recipe=msgspec.to_builtins(asked),
        model=str(source.absolute()),
        tasks=_absolute(tasks or ()),
        held_out=_absolute(held_out or ()),
        demonstrations=_absolute(demonstrations or ()),
        engine_urls=tuple(engine_url or ()),
        out=str(out.absolute()),
        resume=resume,
    )
    # the followers wait for a leader in this process, not in one of the daemon's
    client = None if common.here or in_team() else find_client(settings.paths.state)
    if client is not None:
        return await _train_there(client, wanted, settings, as_json=common.json)
    return await _train_here(wanted, settings, as_json=common.json)


async def _train_there(client: DaemonClient, wanted: TrainAsked, settings: Settings, *, as_json: bool) -> int:
    from runtime.daemon.follow import JobFailed, submit_and_follow
    from trainer.job import TRAIN

    job = await submit_and_follow(
        client,
        TRAIN.name,
        settings=settings,
        options=wanted.options(),
        stages=[stage.name for stage in TRAIN.stages],
        as_json=as_json,
    )
    if job.state != "finished":
        raise JobFailed(job)
    return show_trained(Path(wanted.out), Path(job.result["report"]), as_json=as_json)


async def _train_here(wanted: TrainAsked, settings: Settings, *, as_json: bool) -> int:
    from runtime.interrupts import Interrupted, interrupts
    from trainer.asked import claim, run_id
    from trainer.runs import carry_out_training

    out = Path(wanted.out)
    claim(out, resume=wanted.resume)
    run = run_id("train", out)
    cleanup = f"termloom gc --run {run}"
    with interrupts(cleanup=cleanup) as stop:
        async with _engine(settings, run) as engine:
            report = await carry_out_training(
                wanted,
                engine=engine,
                limits=_limits(settings),
                say=say,
                on_step=write_json if as_json else tell_step,
                on_drain=stop.on_drain,
            )
    if report is None:
        raise Interrupted(cleanup)
    return show_trained(out, report, as_json=as_json)


def new_policy(
    *,
    demonstrations: Annotated[list[Path], Parameter(negative="")],
    out: Path,
    seed: int = 0,
    common: Common = Common(),
) -> int:
    """Make a small policy from nothing: random weights, and a tokeniser for the texts of demonstrations.

    Args:
        demonstrations: Trajectories, one JSON object a line; may be repeated.
        out: The Hugging Face directory to make.
        seed: Of the weights.
    """
    if common.dry_run:
        return common.show(common.settings())
    from trainer.small import make_policy, read_demonstrations

    if out.exists():
        raise UserError(str(out), "is there already", "Choose another --out")
    parameters = make_policy(read_demonstrations(demonstrations), out, seed=seed)
    say(f"a policy of {parameters:,} parameters with random weights is in {out}")
    return 0


async def evaluate(
    *tasks: Path,
    policy: Path | None = None,
    recipe: Path | None = None,
    engine_url: Repeated = None,
    base_url: str | None = None,
    model: str | None = None,
    attempts: int = 1,
    max_turns: int | None = None,
    temperature: float | None = None,
    out: Path = Path("runs/evaluate"),
    sandbox: Sandbox | None = None,
    common: Common = Common(),
) -> int:
    """Measure a policy, or any model behind an OpenAI-compatible endpoint, on tasks in Harbor's format.

    Args:
        tasks: Task directories, or folders of them.
        policy: Hugging Face directory of a policy; needs --recipe.
        recipe: Recipe of the policy: chat format, limits, who serves it.
        engine_url: A running SGLang server, which is handed the policy; may be repeated.
        base_url: The chat endpoint, instead of a policy.
        model: The chat endpoint's model.
        attempts: Attempts at each task.
        max_turns: Turns of an episode at most.
        temperature: Of sampling.
        out: Directory of the result; the same evaluation goes on there, another is refused.
        sandbox: Which engine runs the containers.
    """
    given: dict[str, object] = {"sandbox.engine": sandbox, "chat.base_url": base_url, "chat.model": model}
    settings = common.settings(options=given)
    if common.dry_run:
        return common.show(settings)
    if recipe is not None and (base_url or model):
        raise UserError("--base-url", "names an endpoint, and --recipe a policy", "Measure one of them")
    own = {"max_turns": max_turns, "temperature": temperature}
    from msgspec.structs import replace

    from trainer.asked import require_limits

    asked = _asked("evaluate", tasks, recipe, policy, engine_url, attempts, out)
    asked = replace(asked, limits={name: value for name, value in own.items() if value is not None})
    require_limits(asked.limits)
    return await _play(asked, settings, common)


async def rollout(
    *tasks: Path,
    recipe: Path,
    policy: Path | None = None,
    engine_url: Repeated = None,
    attempts: int | None = None,
    out: Path = Path("runs/rollout"),
    sandbox: Sandbox | None = None,
    common: Common = Common(),
) -> int:
    """Play episodes of a policy with the limits of training, and keep their trajectories with tokens and rewards.

    Args:
        tasks: Task directories, or folders of them.
        recipe: Recipe of the policy: chat format, limits, group size, who serves it.
        policy: Hugging Face directory of the policy, instead of the recipe's.
        engine_url: A running SGLang server, which is handed the policy; may be repeated.
        attempts: Episodes of each task; the recipe's group size when left out.
        out: Directory of the result; the same run goes on there, another is refused.
        sandbox: Which engine runs the containers.
    """
    settings = common.settings(options={"sandbox.engine": sandbox})
    if common.dry_run:
        return common.show(settings)
    from trainer.recipe import load_recipe

    attempts = attempts or load_recipe(recipe).rollout.group_size
    return await _play(_asked("rollout", tasks, recipe, policy, engine_url, attempts, out), settings, common)


def compare(
    first: Path, second: Path, *, force: Annotated[bool, Parameter(negative="")] = False, common: Common = Common()
) -> int:
    """Compare two evaluations, paired by task.

    Args:
        first: A result of evaluate, or its directory.
        second: Another one.
        force: Compare runs that differ in more than the policy, over the tasks that both have.
    """
    if common.dry_run:
        return common.show(common.settings())
    import msgspec

    from trainer.compare import compare_evaluations, differences
    from trainer.evaluate import NOT_MEASURED, percent, read_evaluation

    pair = read_evaluation(first), read_evaluation(second)
    unlike = differences(*pair)
    if unlike and not force:
        shown = "; ".join(unlike[:3]) + (f"; and {len(unlike) - 3} more" if len(unlike) > 3 else "")
        raise UserError("compare", shown, "Use --force to compare them all the same")
    got = compare_evaluations(*pair)
    if common.json:
        write_json({"kind": "result", "unlike": unlike, **msgspec.to_builtins(got)})
        return 0
    for line in unlike:
        write(f"unlike: {line}")
    verdict = "a difference" if got.decided else "no difference can be told"
    write(f"pass@1 {percent(got.first)} and {percent(got.second)} over {got.tasks} tasks")
    low, high = percent(got.low, "+.1%"), percent(got.high, "+.1%")
    difference = f"{percent(got.difference, '+.1%')} ({low} to {high}): {verdict}"
    write(f"second - first: {difference if got.tasks else f'{NOT_MEASURED}, no task was graded in both'}")
    write(f"better: {', '.join(got.better) or 'none'}")
    write(f"worse: {', '.join(got.worse) or 'none'}")
    return 0


def _asked(
    command: Literal["evaluate", "rollout"],
    roots: tuple[Path, ...],
    recipe: Path | None,
    policy: Path | None,
    engine_url: list[str] | None,
    attempts: int,
    out: Path,
) -> PlayAsked:
    """Raises: UserError."""
    import msgspec

    from trainer.arena import find_tasks
    from trainer.asked import PlayAsked, require_directory
    from trainer.recipe import load_recipe

    if not roots:
        raise UserError(command, "no task is named", "Give task directories, or a folder of them")
    if attempts < 1:
        raise UserError("--attempts", f"{attempts} is refused", "It must be at least 1")
    if engine_url and recipe is None:
        raise UserError("--engine-url", "needs --recipe", "An endpoint is named with --base-url")
    find_tasks(roots)
    require_directory(out)
    played = load_recipe(recipe) if recipe else None
    if played is not None and policy is None:
        policy = _model(played, "--policy")
    return PlayAsked(
        command=command,
        tasks=_absolute(roots),
        recipe=msgspec.to_builtins(played) if played else None,
        policy=str(policy.absolute()) if policy else None,
        engine_urls=tuple(engine_url or ()),
        attempts=attempts,
        out=str(out.absolute()),
    )


def _model(recipe: Recipe, option: str) -> Path:
    """The directory that the recipe names. Raises: UserError."""
    if not recipe.model.path:
        raise UserError(option, "the recipe names no directory of a model", f"Give one with {recipe.model.name}")
    return Path(recipe.model.path)


async def _play(asked: PlayAsked, settings: Settings, common: Common) -> int:
    if not common.here and (client := find_client(settings.paths.state)):
        return await _play_there(client, asked, settings, as_json=common.json)
    return await _play_here(asked, settings, as_json=common.json)


async def _play_there(client: DaemonClient, asked: PlayAsked, settings: Settings, *, as_json: bool) -> int:
    from runtime.daemon.follow import JobFailed, submit_and_follow
    from trainer.evaluate import read_evaluation
    from trainer.rollout import STAGE

    job = await submit_and_follow(
        client, asked.command, settings=settings, options=asked.options(), stages=[STAGE.name], as_json=as_json
    )
    if job.state != "finished":
        raise JobFailed(job)
    return show_evaluation(read_evaluation(Path(asked.out)), Path(job.result["report"]), as_json=as_json)


async def _play_here(asked: PlayAsked, settings: Settings, *, as_json: bool) -> int:
    from runtime.interrupts import Interrupted, interrupts
    from runtime.progress import show_progress
    from trainer.asked import run_id
    from trainer.report import write_report
    from trainer.rollout import STAGE
    from trainer.runs import carry_out_play

    run = run_id(asked.command, Path(asked.out))
    cleanup = f"termloom gc --run {run}"
    with interrupts(cleanup=cleanup) as stop:
        async with _engine(settings, run) as engine, show_progress([STAGE.name], json=as_json) as on_event:
            got = await carry_out_play(
                asked,
                settings,
                engine=engine,
                limits=_limits(settings),
                on_event=on_event,
                announce=lambda runner: stop.on_drain(runner.drain),
            )
    if got is None:
        raise Interrupted(cleanup)
    return show_evaluation(got, write_report(Path(asked.out)), as_json=as_json)


def _absolute(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(str(path.absolute()) for path in paths)


def _limits(settings: Settings) -> Limits:
    from runtime.limits import Limits

    return Limits(settings.limits.sizes())


@asynccontextmanager
async def _engine(settings: Settings, run_id: str) -> AsyncIterator[Engine]:
    from runtime.engines import open_settings_engine
    from sandbox.reaper import reap

    async with open_settings_engine(settings, say) as engine:
        await reap(engine, now=time.time(), run_id=run_id)
        yield engine
