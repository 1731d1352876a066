"""The commands of this package: `rollout`, `train`, `evaluate`, `compare`."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from runtime.errors import UserError
from runtime.options import Common
from runtime.settings import Settings
from sandbox.engine import Engine
from trainer.screen import say, show_estimate, show_evaluation, tell_step, write, write_json

if TYPE_CHECKING:
    from runtime.agent.policy import Policy
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
    from trainer.arena import find_tasks
    from trainer.recipe import load_recipe

    asked = load_recipe(recipe)
    source = model or (Path(asked.model.path) if asked.model.path else None)
    found = tuple(find_tasks(tasks or ()))
    if common.dry_run:
        return show_estimate(asked, source, len(found), as_json=common.json)
    if source is None:
        raise UserError("--model", "the recipe names no directory of a model", f"Give one with {asked.model.name}")
    if asked.ppo is not None and not found:
        raise UserError("--tasks", "PPO needs tasks to train on", "Give a folder of them: termloom generate makes one")
    _claim(out, resume=resume)
    from runtime.interrupts import interrupts
    from trainer.report import write_report
    from trainer.training import Inputs, Tools, run_training

    inputs = Inputs(
        model=source,
        tasks=found,
        held_out=tuple(find_tasks(held_out or ())),
        out=out,
        demonstrations=tuple(demonstrations or ()),
        engine_urls=tuple(engine_url or ()),
    )
    run_id = _run_id("train", out)
    with interrupts(cleanup=f"termloom gc --run {run_id}") as stop:
        async with _engine(settings, run_id) as engine:
            tools = Tools(
                engine=engine,
                limits=_limits(settings),
                run_id=run_id,
                say=say,
                on_step=write_json if common.json else tell_step,
                on_drain=stop.on_drain,
            )
            await run_training(asked, inputs, tools)
    report = write_report(out)
    if common.json:
        write_json({"kind": "result", "out": str(out), "report": str(report), "policy": str(out / "policy")})
    else:
        say(f"the policy is in {out / 'policy'}, the report in {report}")
    return 0


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
        engine_url: A running SGLang server that serves the policy; may be repeated.
        base_url: The chat endpoint, instead of a policy.
        model: The chat endpoint's model.
        attempts: Attempts at each task.
        max_turns: Turns of an episode at most.
        temperature: Of sampling.
        out: Directory of the result; a stopped evaluation goes on there.
        sandbox: Which engine runs the containers.
    """
    given: dict[str, object] = {"sandbox.engine": sandbox, "chat.base_url": base_url, "chat.model": model}
    settings = common.settings(options=given)
    if common.dry_run:
        return common.show(settings)
    limits = {"max_turns": max_turns, "temperature": temperature}
    player = _Player(recipe=recipe, policy=policy, engine_urls=tuple(engine_url or ()))
    return await _play(
        "evaluate", tasks, player, settings, attempts=attempts, limits=limits, out=out, as_json=common.json
    )


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
        engine_url: A running SGLang server that serves the policy; may be repeated.
        attempts: Episodes of each task; the recipe's group size when left out.
        out: Directory of the result; a stopped run goes on there.
        sandbox: Which engine runs the containers.
    """
    settings = common.settings(options={"sandbox.engine": sandbox})
    if common.dry_run:
        return common.show(settings)
    from trainer.recipe import load_recipe

    attempts = attempts or load_recipe(recipe).rollout.group_size
    player = _Player(recipe=recipe, policy=policy, engine_urls=tuple(engine_url or ()))
    return await _play("rollout", tasks, player, settings, attempts=attempts, limits={}, out=out, as_json=common.json)


def compare(
    first: Path, second: Path, *, force: Annotated[bool, Parameter(negative="")] = False, common: Common = Common()
) -> int:
    """Compare two evaluations, paired by task.

    Args:
        first: A result of evaluate, or its directory.
        second: Another one.
        force: Compare runs that differ in more than the policy, over the tasks that both have.
    """
    import msgspec

    from trainer.compare import compare_evaluations, differences
    from trainer.evaluate import read_evaluation

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
    write(f"pass@1 {got.first:.1%} and {got.second:.1%} over {got.tasks} tasks")
    write(f"second - first: {got.difference:+.1%} ({got.low:+.1%} to {got.high:+.1%}): {verdict}")
    write(f"better: {', '.join(got.better) or 'none'}")
    write(f"worse: {', '.join(got.worse) or 'none'}")
    return 0


@dataclass(frozen=True, kw_only=True)
class _Player:
    """Who plays: a policy by its recipe, or without one the chat endpoint of the settings."""

    recipe: Path | None
    policy: Path | None
    engine_urls: tuple[str, ...]


async def _play(
    command: Literal["evaluate", "rollout"],
    roots: tuple[Path, ...],
    player: _Player,
    settings: Settings,
    *,
    attempts: int,
    limits: Mapping[str, Any],
    out: Path,
    as_json: bool,
) -> int:
    from runtime.agent.settings import EVALUATE
    from runtime.blobs import Blobs
    from runtime.interrupts import Interrupted, interrupts
    from runtime.progress import show_progress
    from trainer.arena import Arena, find_tasks
    from trainer.evaluate import run_evaluation
    from trainer.recipe import load_recipe
    from trainer.report import write_report
    from trainer.rollout import STAGE, RolloutContext

    if not roots:
        raise UserError(command, "no task is named", "Give task directories, or a folder of them")
    if attempts < 1:
        raise UserError("--attempts", f"{attempts} is refused", "It must be at least 1")
    found = find_tasks(roots)
    recipe = load_recipe(player.recipe) if player.recipe else None
    agent = (
        EVALUATE.model_copy(update={"kind": settings.agent.kind})
        if recipe is None
        else recipe.evaluation_agent()
        if command == "evaluate"
        else recipe.rollout_agent()
    )
    own = {name: value for name, value in limits.items() if value is not None}
    run_id, named = _run_id(command, out), _limits(settings)
    out.mkdir(parents=True, exist_ok=True)
    cleanup = f"termloom gc --run {run_id}"
    with interrupts(cleanup=cleanup) as stop:
        async with (
            _engine(settings, run_id) as engine,
            _policy(player, recipe, settings, out) as (policy, name, version),
            show_progress([STAGE.name], json=as_json) as on_event,
        ):
            context = RolloutContext(
                arena=Arena(engine, named, run_id=run_id),
                policy=policy,
                settings=agent.model_validate(agent.model_dump() | own),
                blobs=Blobs(out / "blobs"),
                source=command,
                model=name,
                grade_overflow=recipe is None or recipe.rollout.context_overflow == "grade",
            )
            got = await run_evaluation(
                context,
                found,
                out,
                run_id=run_id,
                engine=engine.name,
                limits=named,
                attempts=attempts,
                concurrency=settings.limits.run,
                policy_version=version,
                on_event=on_event,
                announce=lambda runner: stop.on_drain(runner.drain),
            )
    if got is None:
        raise Interrupted(cleanup)
    return show_evaluation(got, write_report(out), as_json=as_json)


@asynccontextmanager
async def _policy(
    player: _Player, recipe: Recipe | None, settings: Settings, out: Path
) -> AsyncIterator[tuple[Policy, str, int | None]]:
    """The policy with its name and, where it is one of ours, its version."""
    async with AsyncExitStack() as stack:
        if recipe is None:
            from runtime.agent.policy import ChatPolicy
            from runtime.chat.endpoint import open_client, require_endpoint
            from runtime.store import Store

            if player.policy is not None:
                raise UserError("--policy", "needs --recipe", "Its chat format and limits are in there")
            require_endpoint(settings.chat, otherwise="evaluate a policy with --policy and --recipe")
            store = await stack.enter_async_context(Store(out / "calls.sqlite"))
            client = await stack.enter_async_context(open_client(settings.chat, store, most=settings.limits.chat))
            yield ChatPolicy(client, purpose="evaluate"), settings.chat.model, None
            return
        from trainer.policy.agent import TokenPolicy
        from trainer.serving import open_encoder, open_pool

        directory = player.policy or Path(recipe.model.path)
        encoder = open_encoder(recipe, directory)
        pool = await stack.enter_async_context(open_pool(recipe, directory, player.engine_urls))
        yield TokenPolicy(pool, encoder, seed=recipe.seed), str(directory), pool.version


def _claim(out: Path, *, resume: bool) -> None:
    """A new run starts in an empty directory. Raises: UserError."""
    begun, present = (out / "recipe.json").exists(), out.exists() and any(out.iterdir())
    if resume and not begun:
        raise UserError(str(out), "holds no run that could be resumed", "Leave out --resume")
    if present and not resume:
        remedy = "Use --resume, or choose another --out" if begun else "Choose an empty or new directory as --out"
        raise UserError(str(out), "is not empty", remedy)


def _run_id(command: str, out: Path) -> str:
    """The same for a run and its resumption."""
    return f"{command}-{hashlib.sha256(os.fsencode(out.absolute())).hexdigest()[:12]}"


def _limits(settings: Settings) -> Any:
    from runtime.limits import Limits

    return Limits(settings.limits.sizes())


@asynccontextmanager
async def _engine(settings: Settings, run_id: str) -> AsyncIterator[Engine]:
    from runtime.engines import open_settings_engine
    from sandbox.reaper import reap

    async with open_settings_engine(settings, say) as engine:
        await reap(engine, now=time.time(), run_id=run_id)
        yield engine
