"""Carries out what is asked of the trainer, given an engine and limits: for the commands, for jobs, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from runtime.agent.policy import ChatPolicy, Policy
from runtime.agent.settings import EVALUATE, AgentSettings
from runtime.blobs import Blobs
from runtime.chat.endpoint import open_client, require_endpoint
from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.limits import Limits
from runtime.runner import Runner
from runtime.settings import Settings
from runtime.store import Store
from sandbox.engine import Engine
from trainer.arena import Arena, find_tasks
from trainer.asked import PlayAsked, TrainAsked, require_limits, require_policy, run_id
from trainer.basis import Player, basis_of, policy_digest, require_same
from trainer.evaluate import STORE, Evaluation, run_evaluation
from trainer.recipe import Recipe
from trainer.report import write_report
from trainer.rollout import RolloutContext


async def carry_out_training(
    asked: TrainAsked,
    *,
    engine: Engine,
    limits: Limits,
    say: Callable[[str], None],
    on_step: Callable[[dict[str, Any]], None],
    on_drain: Callable[[Callable[[], None]], None],
    on_event: OnEvent = lambda _: None,
) -> Path | None:
    """Train, or go on; returns the report, None when it was drained before its end.

    Raises: as `trainer.training.run_training`.
    """
    from trainer.training import Inputs, Tools, run_training

    out = Path(asked.out)
    inputs = Inputs(
        model=Path(asked.model),
        tasks=tuple(find_tasks(map(Path, asked.tasks))),
        held_out=tuple(find_tasks(map(Path, asked.held_out))),
        out=out,
        demonstrations=tuple(map(Path, asked.demonstrations)),
        engine_urls=asked.engine_urls,
    )
    tools = Tools(
        engine=engine,
        limits=limits,
        run_id=run_id("train", out),
        say=say,
        on_step=on_step,
        on_drain=on_drain,
        on_event=on_event,
    )
    ended = await run_training(msgspec.convert(asked.recipe, Recipe), inputs, tools)
    report = await to_thread.run_sync(write_report, out)
    return report if ended else None


async def carry_out_play(
    asked: PlayAsked,
    settings: Settings,
    *,
    engine: Engine,
    limits: Limits,
    on_event: OnEvent,
    announce: Callable[[Runner], None],
) -> Evaluation | None:
    """Play and grade, or go on with it; None when it was drained before its end.

    Raises: UserError, TaskInvalid, StoreError, ChatRejected, SandboxError, HandoverFailed, PolicyUnavailable.
    """
    out, recipe = Path(asked.out), msgspec.convert(asked.recipe, Recipe) if asked.recipe else None
    tasks, agent, run = find_tasks(map(Path, asked.tasks)), _agent(asked, recipe, settings), run_id(asked.command, out)
    player = await to_thread.run_sync(_player, asked, recipe, settings)
    grade_overflow = recipe is None or recipe.rollout.context_overflow == "grade"
    basis = await to_thread.run_sync(
        lambda: basis_of(
            tasks,
            agent,
            player=player,
            engine=engine.name,
            grade_overflow=grade_overflow,
            attempts=asked.attempts,
            seed=recipe.seed if recipe else 0,
        )
    )
    out.mkdir(parents=True, exist_ok=True)
    await require_same(out / STORE, run, basis)  # a policy is loaded, and handed over, for a run that will go on
    async with _policy(asked, recipe, settings) as (policy, version):
        context = RolloutContext(
            arena=Arena(engine, limits, run_id=run),
            policy=policy,
            settings=agent,
            blobs=Blobs(out / "blobs"),
            source=asked.command,
            model=player.model,
            grade_overflow=grade_overflow,
        )
        return await run_evaluation(
            context,
            tasks,
            out,
            run_id=run,
            basis=basis,
            limits=limits,
            concurrency=settings.limits.run,
            policy_version=version,
            on_event=on_event,
            announce=announce,
        )


def _agent(asked: PlayAsked, recipe: Recipe | None, settings: Settings) -> AgentSettings:
    """Raises: UserError."""
    require_limits(asked.limits)
    agent = EVALUATE.model_copy(update={"kind": settings.agent.kind})
    if recipe is not None:
        agent = recipe.evaluation_agent() if asked.command == "evaluate" else recipe.rollout_agent()
    return agent.model_validate(agent.model_dump() | asked.limits)


def _player(asked: PlayAsked, recipe: Recipe | None, settings: Settings) -> Player:
    """Raises: UserError."""
    if recipe is None:
        if asked.policy is not None:
            raise UserError("--policy", "needs --recipe", "Its chat format and limits are in there")
        require_endpoint(settings.chat, otherwise="evaluate a policy with --policy and --recipe")
        return Player(model=settings.chat.model, served_by="endpoint", address=settings.chat.base_url)
    directory = require_policy(asked)
    return Player(
        model=str(directory),
        weights=policy_digest(directory),
        served_by=recipe.serve.engine,
        chat_format=recipe.model.chat_format,
    )


@asynccontextmanager
async def _policy(
    asked: PlayAsked, recipe: Recipe | None, settings: Settings
) -> AsyncIterator[tuple[Policy, int | None]]:
    """The policy and, where it is one of ours, its version."""
    async with AsyncExitStack() as stack:
        if recipe is None:
            store = await stack.enter_async_context(Store(Path(asked.out) / STORE))
            client = await stack.enter_async_context(open_client(settings.chat, store, most=settings.limits.chat))
            yield ChatPolicy(client, purpose=asked.command), None
            return
        from trainer.policy.agent import TokenPolicy
        from trainer.serving import open_encoder, serve

        directory = require_policy(asked)
        encoder = open_encoder(recipe, directory)
        serving = serve(recipe, directory, asked.engine_urls, encoder=encoder, place=Path(asked.out) / "handed-over")
        pool = await stack.enter_async_context(serving)
        yield TokenPolicy(pool, encoder, seed=recipe.seed), pool.version
