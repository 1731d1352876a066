"""The stages of synthesis: a task is read, an episode of it is played and graded, its trajectory is filed."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec.structs import replace

from generators.context import Bench
from generators.handling import UnfitError, handles
from generators.images import HeldImages
from generators.synthesis.messages import Enacted, Filed, Opened, Planned
from generators.synthesis.outputs import Shelf
from generators.synthesis.performance import agent_settings, perform
from generators.synthesis.roles import Troupe
from runtime.agent.episode import Episode
from runtime.errors import TaskInvalid
from runtime.limits import Limits as NamedLimits
from runtime.settings import SynthesizeSettings
from runtime.stage import Message, Stage
from runtime.task import Task, pack_task, read_task, unpack_task
from runtime.trajectory import decode, encode
from sandbox.engine import Engine, Sandbox
from sandbox.spec import Verdict

_CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class SynthesisContext:
    """Given to every stage of a synthesis run."""

    engine: Engine
    limits: NamedLimits
    troupe: Troupe
    settings: SynthesizeSettings
    run_id: str
    shelf: Shelf
    images: HeldImages = field(default_factory=HeldImages)


@handles("open")
async def open_task(message: Planned, context: SynthesisContext) -> Message:
    """Read the task's directory: the episode may be played on a machine that does not have it."""
    path = Path(message.directory)
    try:
        task = await anyio.to_thread.run_sync(read_task, path)
        task.context()
    except TaskInvalid as invalid:
        raise UnfitError("task_invalid", str(invalid)) from invalid
    return Opened(item=message.item, run_id=message.run_id, name=path.name, task=pack_task(task), repeat=message.repeat)


@handles("enact")
async def enact(message: Opened, context: SynthesisContext) -> Message:
    """Play one episode in a fresh sandbox and have the verifier judge what is left of it.

    Nothing else needs the image, and what comes of it may be filed on another machine: it is let go of here.
    """
    try:
        return await _enacted(message, context)
    finally:
        await context.images.release(context.engine, message.item)


async def _enacted(message: Opened, context: SynthesisContext) -> Enacted:
    task = unpack_task(message.task)
    bench = _bench(task, message, context)
    built = await bench.build()
    if not built.ok:
        raise UnfitError("build_failed", f"`{built.failed_step}` ended with {built.exit_code}: {built.log_tail[-300:]}")

    async def play(sandbox: Sandbox) -> Episode:
        cast = await context.troupe.cast(task, sandbox)
        session = await sandbox.open_session()
        try:
            return await perform(cast, sandbox, session, task.instruction, context.settings, key=message.item)
        finally:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await session.aclose()

    episode, verdict = await bench.attempt(built.image, task.suite(), "enact", play)
    if verdict.reward is None:
        raise UnfitError(verdict.failure, verdict.detail)
    return Enacted(item=message.item, run_id=message.run_id, trajectory=_record(message, context, episode, verdict))


def _bench(task: Task, message: Opened, context: SynthesisContext) -> Bench:
    return Bench(
        context.engine,
        context.limits,
        task.context(),
        task.limits(),
        services=task.services,
        run_id=context.run_id,
        item=message.item,
        images=context.images,
    )


def _record(message: Opened, context: SynthesisContext, episode: Episode, verdict: Verdict) -> bytes:
    """The trajectory without anything that differs from run to run: no duration, no name of the run."""
    settings = context.settings
    trajectory = episode.record(
        agent_settings(settings),
        trajectory_id=message.item,
        run_id=f"synthesis-{settings.seed}",
        task=message.name,
    )
    return encode(
        replace(
            trajectory,
            attempt=message.repeat,
            source="synthesis",
            model=context.troupe.name,
            agent_version=version("termloom"),
            verdict=replace(verdict, duration_s=0.0),
        )
    )


@handles("file")
async def file(message: Enacted, context: SynthesisContext) -> Message:
    """Write the trajectory down."""
    trajectory = decode(message.trajectory)
    await anyio.to_thread.run_sync(context.shelf.add, trajectory)
    return Filed(item=message.item, run_id=message.run_id, reward=trajectory.reward or 0.0)


STAGES = (
    Stage(
        name="open",
        subscribes="planned",
        takes=Planned,
        publishes={Opened: "opened"},
        handler=open_task,
        slots=4,
    ),
    Stage(
        name="enact",
        subscribes="opened",
        takes=Opened,
        publishes={Enacted: "enacted"},
        handler=enact,
        slots=64,
        limits=("chat", "build", "create", "run", "grade"),
    ),
    Stage(
        name="file",
        subscribes="enacted",
        takes=Enacted,
        publishes={Filed: "filed"},
        handler=file,
        slots=1,  # one writer: the order of the lines is that of their writing
    ),
)
