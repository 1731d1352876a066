"""One generation run, from settings to a published set: what the command line calls, and tests.

The run's store decides whether this is a beginning or a resumption; either way the same tasks come out. A resumed run
goes on with the settings it began with.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import anyio.to_thread

from generators.band import Band
from generators.context import GenerationContext, Players
from generators.dedupe import Overlap
from generators.outdir import RunPlace, write_manifest
from generators.quota import cells
from generators.stages import STAGES
from generators.stages.sample import CandidateSource
from generators.summary import Summary, summarise
from generators.taxonomy import load_taxonomy
from runtime.bus import MemoryBus
from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.runner import Runner, RunResult
from runtime.settings import AgentSection, ChatSettings, GenerateSettings, Section, Settings
from runtime.stage import Stage
from runtime.store import Store
from sandbox.engine import Engine

COMMAND = "generate"

Recorded = TypeVar("Recorded", bound=Section)


async def run_generation(
    settings: Settings,
    place: RunPlace,
    *,
    engine: Engine,
    on_event: OnEvent,
    given: Collection[str] = (),
    announce: Callable[[Runner], None] = lambda _: None,
    limits: Limits | None = None,
    stages: Sequence[Stage] = STAGES,
) -> tuple[RunResult, Summary]:
    """Run to the end, or as far as a drain allows; the manifest is written when the set is complete.

    Args:
        given: names of `generate` settings that the user gave explicitly; a resumed run refuses others than its own.
        announce: is handed the runner before it starts, for whoever may drain it.
        limits: shared with other runs of this process; by default those of the settings, for this run alone.
        stages: the pipeline as it is to be run, where some of its work is done elsewhere.

    Raises: UserError, StoreError, ChatRejected, SandboxError.
    """
    async with Store(place.store) as store:
        now = Begun(generate=settings.generate, agent=settings.agent)
        run = await store.open_run(place.run_id, command=COMMAND, settings=now.model_dump_json())
        began = resumed(now, Begun.read(run.settings, now), given)
        ours = began.generate
        limits = limits or Limits(settings.limits.sizes())
        source = candidate_source(ours, place.run_id)
        async with open_players(ours, began.over(settings), store) as players, MemoryBus() as bus:
            context = GenerationContext(
                engine=engine,
                limits=limits,
                players=players,
                settings=ours,
                agent=began.agent,
                run_id=place.run_id,
                seed=ours.seed,
                out=place.out,
            )
            runner = Runner(
                stages=stages,
                bus=bus,
                store=store,
                context=context,
                run_id=place.run_id,
                source=source,
                on_event=on_event,
                limits=limits,
            )
            announce(runner)
            try:
                result = await runner.run()
            finally:
                await context.images.release_all(engine)
        routes = Routes(STAGES)
        terminal = [routes.decode(entry.body) for entry in await store.terminal(place.run_id)]
    summary = summarise(terminal, source.screened, wanted=ours.count)
    if result.state == "finished":
        await anyio.to_thread.run_sync(write_manifest, place, _manifest(ours, players, summary))
    return result, summary


def check(settings: Settings) -> None:
    """Refuse what cannot be run before anything is begun. Raises: UserError."""
    candidate_source(settings.generate, "check").start()
    if settings.generate.author == "chat":
        from runtime.chat.endpoint import require_endpoint

        require_endpoint(settings.chat, otherwise="use --author procedural")
    _check_band(settings)


def _check_band(settings: Settings) -> None:
    """Raises: UserError for a policy without a band or without an address."""
    Band.parse(settings.generate.band)
    if not settings.generate.band_model:
        if settings.band.base_url:
            raise UserError("generate.band_model", "is not set", "Give --band-model")
        return
    if not settings.generate.band:
        raise UserError("--band-model", "measures nothing without a band", "Give --band, as 1/8..7/8")
    _require_policy_endpoint(settings)


def _require_policy_endpoint(settings: Settings) -> None:
    if not settings.band.base_url:
        raise UserError("band.base_url", "is not set", "Give --band-base-url, where the policy answers")


def candidate_source(settings: GenerateSettings, run_id: str) -> CandidateSource:
    """Where this run's candidates come from. Raises: UserError for a category, level or file that cannot be used."""
    return CandidateSource(
        taxonomy=load_taxonomy(),
        seed=settings.seed,
        cells=cells(
            load_taxonomy(),
            settings.quotas,
            seed=settings.seed,
            count=settings.count,
            candidates_per_task=settings.candidates_per_task,
            categories=_categories(settings),
            levels=settings.levels,
            families=_families(settings),
        ),
        run_id=run_id,
        style=settings.style,
        families=settings.families,
        overlap=Overlap.load(settings.overlap) if settings.overlap else None,
    )


def _families(settings: GenerateSettings) -> dict[str, str]:
    """Category by name of the task families that a quota may name."""
    if settings.author != "procedural":
        return {}
    from generators.procedural.library import FAMILIES

    return {f.name: f.category for f in FAMILIES if not settings.families or f.name in settings.families}


def _categories(settings: GenerateSettings) -> tuple[str, ...]:
    """The procedural author draws from the categories it has families for."""
    if settings.author != "procedural":
        if settings.families or settings.style == "terse":
            raise UserError("--family", "only the procedural author has task families", "Leave out --author chat")
        return settings.categories
    from generators.procedural.library import FAMILIES, members

    names = [family.name for family in FAMILIES]
    if unknown := sorted(set(settings.families) - set(names)):
        raise UserError("--family", f"no task family is called {unknown[0]!r}", f"There are {', '.join(names)}")
    covered = sorted({family.category for family in members(settings.style, settings.families)})
    if missing := sorted(set(settings.categories) - set(covered)):
        raise UserError("--category", f"no task family makes {missing[0]!r}", f"There are {', '.join(covered)}")
    return settings.categories or tuple(covered)


class Begun(Section):
    """What a run is recorded with: all that the tasks it makes depend on, but for the endpoints."""

    generate: GenerateSettings
    agent: AgentSection
    """Which the chat author's endpoint plays."""

    @classmethod
    def read(cls, recorded: str, now: Begun) -> Begun:
        """A record of the earlier form holds the section `generate` alone: the agent is that of `now`."""
        written = json.loads(recorded)
        return cls.model_validate(written if "generate" in written else {"generate": written, "agent": now.agent})

    def over(self, settings: Settings) -> Settings:
        """The settings in force for the run."""
        return settings.model_copy(update=dict(self))


def resumed(now: Begun, then: Begun, given: Collection[str]) -> Begun:
    """What a run that began as `then` goes on with. Raises: UserError when something else is asked for."""
    generate = recorded_settings(COMMAND, now.generate, then.generate, given)
    if generate.author != "chat":
        return Begun(generate=generate, agent=now.agent)
    return Begun(generate=generate, agent=recorded_settings("agent", now.agent, then.agent, ()))


def recorded_settings(section: str, now: Recorded, then: Recorded, given: Collection[str]) -> Recorded:
    """The settings a run goes on with: those it began with. Raises: UserError when others are asked for."""
    model = type(now)
    default = model()
    for name in model.model_fields:
        asked, began, usual = (getattr(settings, name) for settings in (now, then, default))
        if asked != began and (name in given or asked != usual):
            raise UserError(
                f"{section}.{name}",
                f"is {asked!r}, but the run began with {began!r}",
                "Resume without it, or start a new run in another directory",
            )
    return then


@asynccontextmanager
async def open_players(ours: GenerateSettings, settings: Settings, store: Store) -> AsyncIterator[Players]:
    """The cast that the settings name, and the policy that the difficulty band is about."""
    async with AsyncExitStack() as clients:
        players = await _author(ours, settings, store, clients)
        if ours.band_model:
            from generators.chat.players import measured_solver
            from runtime.chat.endpoint import open_client

            _require_policy_endpoint(settings)
            policy = ChatSettings(model=ours.band_model, **dict(settings.band))
            client = await clients.enter_async_context(open_client(policy, store, most=settings.limits.chat))
            solver = measured_solver(client, temperature=policy.temperature)
            players = dataclasses.replace(players, measured=solver, measured_name=client.model)
        yield players


async def _author(ours: GenerateSettings, settings: Settings, store: Store, clients: AsyncExitStack) -> Players:
    if ours.author == "procedural":
        from generators.procedural.players import procedural_cast

        return Players(cast=procedural_cast(), name="procedural")
    from generators.chat.players import chat_cast, prompt_versions
    from runtime.agent.settings import SOLVE
    from runtime.chat.endpoint import open_client, require_endpoint

    chat, agent = settings.chat, SOLVE.model_copy(update={"kind": settings.agent.kind})
    require_endpoint(chat, otherwise="start another run with --author procedural")
    client = await clients.enter_async_context(open_client(chat, store, most=settings.limits.chat))
    cast = chat_cast(client, temperature=chat.temperature, max_tokens=chat.max_tokens, agent=agent)
    return Players(cast=cast, name=f"chat:{client.model}", prompts=prompt_versions())


def _manifest(settings: GenerateSettings, players: Players, summary: Summary) -> dict[str, object]:
    return {
        "seed": settings.seed,
        "count": settings.count,
        "quotas": [quota.model_dump() for quota in settings.quotas],
        "author": players.name,
        "taxonomy": load_taxonomy().version,
        "tasks": [
            {
                "directory": task.directory,
                "task_hash": task.task_hash,
                "category": task.category,
                "difficulty": task.difficulty,
                "pass_rate": task.pass_rate,
            }
            for task in summary.tasks
        ],
        "yield": [
            {"stage": y.stage, "taken": y.taken, "passed": y.passed, "rejected": y.rejected} for y in summary.stages
        ],
    }
