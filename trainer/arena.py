"""Where episodes are played: task directory, image, sandbox, session, agent loop, frozen file system, verdict.

Rollouts and evaluation play here, each with its own policy and limits.

Invariants:
- A task's image is built once in a run, however many episodes ask for it at once, and again where another process
  removed it.
- An episode's reward comes from the frozen file system only, and only when the episode ended by the agent's own doing.
- Whatever is infrastructure's fault leaves here as an exception or as a trajectory without a reward, never as a reward.
- Waiting for a place in a limit is on no episode's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from runtime.agent.episode import Episode, run_episode
from runtime.agent.policy import Policy
from runtime.agent.settings import AgentSettings
from runtime.errors import UserError
from runtime.ground import Ground
from runtime.limits import Limits
from runtime.task import Task, read_task
from runtime.trajectory import Trajectory
from sandbox.engine import Engine
from sandbox.errors import ImageMissing
from sandbox.spec import FailureClass, Verdict


class EnvironmentBroken(Exception):
    """A task's environment does not build: the task's fault, the same for all its episodes."""

    def __init__(self, task: str, step: str, log_tail: str) -> None:
        self.task, self.step, self.log_tail = task, step, log_tail
        super().__init__(f"{task}: its environment does not build at {step!r}: {log_tail[-500:]}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A task that is ready to be played."""

    name: str
    task: Task
    hash: str
    image: str


class Arena:
    """Plays episodes on one engine. Lives in one event loop.

    Args:
        limits: `build`, `create`, `run` and `grade` are taken from it.
    """

    def __init__(self, engine: Engine, limits: Limits, *, run_id: str) -> None:
        self._engine, self._limits, self._run_id = engine, limits, run_id
        self._places: dict[Path, Place | EnvironmentBroken] = {}
        self._building: dict[Path, anyio.Lock] = {}  # each protects one directory's entry above while it is made

    async def place(self, directory: Path) -> Place:
        """The task of a directory with its image.

        Raises: TaskInvalid, EnvironmentBroken, BuildUnsupported, EngineFault.
        """
        async with self._building.setdefault(directory, anyio.Lock()):
            if directory not in self._places:
                self._places[directory] = await self._make(directory)
        made = self._places[directory]
        if isinstance(made, EnvironmentBroken):
            raise EnvironmentBroken(made.task, made.step, made.log_tail)
        return made

    async def play(
        self,
        directory: Path,
        policy: Policy,
        settings: AgentSettings,
        *,
        item: str,
        grade_overflow: bool = True,
    ) -> Trajectory:
        """One episode, graded when it can be. `item` names it, its draws and its sandbox.

        Raises: TaskInvalid, EnvironmentBroken, SandboxError; BudgetExhausted, ChatRejected.
        """
        place = await self.place(directory)
        try:
            return await self._play(place, policy, settings, item=item, grade_overflow=grade_overflow)
        except ImageMissing as missing:
            if missing.image != place.image:
                raise
        place = await self._rebuilt(directory, place)
        return await self._play(place, policy, settings, item=item, grade_overflow=grade_overflow)

    async def _play(
        self, place: Place, policy: Policy, settings: AgentSettings, *, item: str, grade_overflow: bool
    ) -> Trajectory:
        ground, frozen = self._ground(place, item), ""
        try:
            async with ground.sandbox(place.image, "play") as sandbox:
                session = await sandbox.open_session()
                episode = await run_episode(policy, session, place.task.instruction, settings, key=item)
                await session.aclose()
                if _is_graded(episode, grade_overflow=grade_overflow):
                    frozen = await sandbox.freeze()
            verdict = await ground.grade(frozen, place.task.suite(), "play") if frozen else None
        finally:
            if frozen:
                with anyio.move_on_after(10, shield=True):
                    await self._engine.remove_image(frozen)
        trajectory = episode.record(settings, trajectory_id=item, run_id=self._run_id, task=place.name)
        return msgspec.structs.replace(
            trajectory, agent_version=version("termloom"), failure=_failure(episode, verdict), verdict=verdict
        )

    async def _make(self, directory: Path) -> Place | EnvironmentBroken:
        task = await to_thread.run_sync(read_task, directory)
        return await self._build(directory.name, task, await to_thread.run_sync(task.hash))

    async def _rebuilt(self, directory: Path, gone: Place) -> Place:
        """The place whose image is gone, the same task with an image again. Raises: as `place`."""
        async with self._building[directory]:
            if self._places[directory] is gone:  # else another episode has seen to it
                self._places[directory] = await self._build(gone.name, gone.task, gone.hash)
        return await self.place(directory)

    async def _build(self, name: str, task: Task, hash_: str) -> Place | EnvironmentBroken:
        async with self._limits.take("build", item=name):
            built = await self._engine.build(task.context())
        if not built.ok:
            return EnvironmentBroken(name, built.failed_step, built.log_tail)
        return Place(name=name, task=task, hash=hash_, image=built.image)

    def _ground(self, place: Place, item: str) -> Ground:
        return Ground(
            engine=self._engine,
            named=self._limits,
            limits=place.task.limits(),
            services=place.task.services,
            run_id=self._run_id,
            item=item,
        )


def _is_graded(episode: Episode, *, grade_overflow: bool) -> bool:
    overflowed = episode.failure in (FailureClass.CONTEXT_LENGTH, FailureClass.OUTPUT_LENGTH)
    return episode.gradable and (grade_overflow or not overflowed)


def _failure(episode: Episode, verdict: Verdict | None) -> FailureClass:
    """How the attempt ended: in the grader when there was no reward, else as the agent ended it."""
    if verdict is None:
        return episode.failure
    if verdict.reward is None:
        return verdict.failure
    return episode.failure if verdict.passed or episode.failure is not FailureClass.OK else FailureClass.AGENT_FAIL


def find_tasks(roots: Iterable[Path]) -> list[Path]:
    """Task directories, sorted by name: each root that is one, and those right below each that is not.

    Raises: UserError.
    """
    found: dict[str, Path] = {}
    for root in roots:
        here = [root] if (root / "task.toml").is_file() else sorted(p.parent for p in root.glob("*/task.toml"))
        if not here:
            raise UserError(
                str(root), "holds no task (no task.toml in it or right below it)", "Give a directory of tasks"
            )
        for directory in here:
            if found.setdefault(directory.name, directory) != directory:
                raise UserError(str(directory), f"a second task named '{directory.name}'", "Rename one of them")
    return [found[name] for name in sorted(found)]
