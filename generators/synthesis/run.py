"""One synthesis run, from task directories to trajectories on disk: what the command line calls, and tests.

The run's store decides whether this is a beginning or a resumption; either way the same trajectories come out. A
resumed run goes on with the settings it began with; what is exported of the outcome may differ each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from generators.outdir import RunPlace, write_manifest
from generators.run import recorded_settings
from generators.synthesis.messages import Planned
from generators.synthesis.outputs import Shelf
from generators.synthesis.roles import Troupe
from generators.synthesis.stages import STAGES, SynthesisContext
from generators.synthesis.statistics import Statistics
from runtime.bus import MemoryBus
from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.limits import Limits
from runtime.routes import Routes
from runtime.runner import Runner, RunResult
from runtime.settings import Settings, SynthesizeSettings
from runtime.source import Once
from runtime.stage import Rejected, Stage
from runtime.store import Store
from sandbox.engine import Engine

COMMAND = "synthesize"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    result: RunResult
    statistics: Statistics
    wanted: int
    rejected: dict[str, int]
    """Trajectories that could not be made, by reason."""


async def run_synthesis(
    settings: Settings,
    place: RunPlace,
    tasks: Sequence[Path],
    *,
    engine: Engine,
    on_event: OnEvent,
    given: Collection[str] = (),
    announce: Callable[[Runner], None] = lambda _: None,
    limits: Limits | None = None,
    stages: Sequence[Stage] = STAGES,
) -> Outcome:
    """Run to the end, or as far as a drain allows; exports and statistics are written either way.

    Args:
        tasks: task directories, see `task_directories`.
        given: names of `synthesize` settings that the user gave explicitly; a resumed run refuses others than its own.
        announce: is handed the runner before it starts, for whoever may drain it.
        limits: shared with other runs of this process; by default those of the settings, for this run alone.
        stages: the pipeline as it is to be run, where some of its work is done elsewhere.

    Raises: UserError, StoreError, TrajectoryInvalid, ChatRejected, SandboxError.
    """
    async with Store(place.store) as store:
        run = await store.open_run(place.run_id, command=COMMAND, settings=settings.synthesize.model_dump_json())
        then = SynthesizeSettings.model_validate_json(run.settings)
        ours = recorded_settings(COMMAND, settings.synthesize, then, given)
        plan = planned(tasks, ours, place.run_id)
        limits, shelf = limits or Limits(settings.limits.sizes()), await anyio.to_thread.run_sync(Shelf, place.out)
        async with open_troupe(ours, settings, store) as troupe, MemoryBus() as bus:
            context = SynthesisContext(
                engine=engine, limits=limits, troupe=troupe, settings=ours, run_id=place.run_id, shelf=shelf
            )
            runner = Runner(
                stages=stages,
                bus=bus,
                store=store,
                context=context,
                run_id=place.run_id,
                source=Once(plan),
                on_event=on_event,
                limits=limits,
            )
            announce(runner)
            try:
                result = await runner.run()
            finally:
                await context.images.release_all(engine)
        routes = Routes(STAGES)
        ends = [routes.decode(entry.body) for entry in await store.terminal(place.run_id)]
    statistics = await anyio.to_thread.run_sync(shelf.finish, settings.export)
    rejected = Counter(end.reason.partition(":")[0] for end in ends if isinstance(end, Rejected))
    outcome = Outcome(result=result, statistics=statistics, wanted=len(plan), rejected=dict(sorted(rejected.items())))
    if result.state == "finished":
        await anyio.to_thread.run_sync(write_manifest, place, _manifest(ours, troupe, tasks, outcome))
    return outcome


def task_directories(folder: Path) -> list[Path]:
    """The task directories in a folder, or the folder itself when it is one. Raises: UserError when there is none."""
    if (folder / "task.toml").is_file():
        return [folder.absolute()]
    found = sorted(path.parent.absolute() for path in folder.glob("*/task.toml"))
    if not found:
        raise UserError("--tasks", f"{folder} holds no task directory", "`termloom generate` makes some")
    return found


def planned(tasks: Sequence[Path], settings: SynthesizeSettings, run_id: str) -> list[Planned]:
    """One item for each task and repeat."""
    return [
        Planned(item=f"{task.name}-s{settings.seed}-{repeat:02d}", run_id=run_id, directory=str(task), repeat=repeat)
        for task in tasks
        for repeat in range(settings.repeats)
    ]


def check(settings: Settings) -> None:
    """Refuse what cannot be run before anything is begun. Raises: UserError."""
    if settings.export.parquet:
        from runtime.export import require_parquet

        require_parquet()
    if settings.synthesize.author == "chat":
        from runtime.chat.endpoint import require_endpoint

        require_endpoint(settings.chat, otherwise="use --author procedural")


@asynccontextmanager
async def open_troupe(ours: SynthesizeSettings, settings: Settings, store: Store) -> AsyncIterator[Troupe]:
    """The players that the settings name."""
    if ours.author == "procedural":
        from generators.synthesis.procedural import ProceduralTroupe

        yield ProceduralTroupe()
        return
    from generators.synthesis.chat import ChatTroupe
    from runtime.chat.endpoint import open_client

    async with open_client(settings.chat, store, most=settings.limits.chat) as client:
        yield ChatTroupe(client, client.model)


def _manifest(
    settings: SynthesizeSettings, troupe: Troupe, tasks: Sequence[Path], outcome: Outcome
) -> dict[str, object]:
    return {
        "settings": settings.model_dump(mode="json"),
        "author": troupe.name,
        "prompts": troupe.prompts,
        "tasks": [task.name for task in tasks],
        "trajectories": outcome.statistics.trajectories,
        "rejected": outcome.rejected,
    }
