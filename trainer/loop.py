"""The training loop: rollouts, buffer, learner and hand-over, asynchronous up to a staleness bound.

Invariants:
- The order of the tasks depends on the seed alone; a resumed run trains on what its checkpoint has not, and on nothing
  twice.
- At bound 0 the loop is the plain synchronous one, bit for bit: nothing starts before the weights it will use are
  served.
- Rollouts go on while the learner works and while weights change hands; their tokens carry the versions they came from.
- No silent stall: when no episode with a reward, update or hand-over has finished for `patience_s`, the run ends and
  names what is waited for. Episodes without a reward are no progress, however many of them end.
- An episode without a reward reaches no statistic of the learner; it is counted by reason and makes room for another.
- A run that has come to its end has nothing left to do when it is started again: its last checkpoint says so.
- What is measured after a step belongs to the weights of its checkpoint, which is written before; a kill in between
  loses neither the step's line nor its measurement.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from runtime.causes import first_cause
from runtime.errors import RuntimeFault
from trainer.buffer import Buffer
from trainer.checkpoint import newest, restore, save_checkpoint
from trainer.handover import PolicyPool, WeightStore
from trainer.metrics import MetricsLog
from trainer.ppo import Learner, Metrics
from trainer.sample import Sample


@dataclass(frozen=True, kw_only=True)
class Group:
    """Episodes of one task drawn together in one pass over the tasks."""

    task: str
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.task}/{self.epoch}"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """An episode that has no reward, and why."""

    reason: str


_EPISODES = "episodes_"
"""What the buffer's counts are called in a step's line."""

Rollout = Callable[[Group, int], Awaitable[Sample | Missing]]
"""(group, member) -> what the episode came to. Its sample's id is `<task>/<epoch>/<member>`."""

Evaluate = Callable[[int, Callable[[], None]], Awaitable[Metrics]]
"""(updates so far, a call that tells of progress) -> what the served policy measures."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What of a recipe the loop needs."""

    batch: int
    group_size: int
    bound: int = 0
    concurrency: int = 64
    epochs: int = 1
    steps: int | None = None
    seed: int = 0
    checkpoint_every: int = 10
    checkpoint_keep: int = 2
    evaluate_every: int = 0
    patience_s: float = 1800.0
    shuffle_rewards: bool = False
    probe: tuple[int, ...] = (0, 1, 2)
    """Token ids of the fingerprint that each hand-over is checked with."""


class TrainingStalled(RuntimeFault):
    """Nothing has moved for too long."""

    def __init__(self, patience_s: float, waiting: Sequence[str]) -> None:
        self.waiting = tuple(waiting)
        shown = "; ".join(waiting[:5]) or "nothing is in work"
        super().__init__(f"training has not moved for {patience_s:g} s: {shown}")


class NothingLearned(RuntimeFault):
    """All passes over the tasks came to less than one batch of episodes with a reward."""

    def __init__(self, config: LoopConfig, counts: Mapping[str, int]) -> None:
        reasons = ", ".join(f"{count} {name.partition('/')[2]}" for name, count in counts.items() if "failed/" in name)
        super().__init__(
            f"no update was made: {counts.get('admitted', 0)} episodes in {config.epochs} pass(es) over the tasks,"
            f" {counts.get('failed', 0)} of them without a reward ({reasons or 'none'}); an update needs {config.batch}"
        )


def task_order(tasks: Sequence[str], *, epochs: int, seed: int) -> Iterator[Group]:
    """Every task once in each pass, each pass in its own order."""
    for epoch in range(epochs):
        order = sorted(tasks)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (Group(task=task, epoch=epoch) for task in order)


def shuffled(samples: Sequence[Sample], *, seed: str) -> list[Sample]:
    """The same episodes with each other's rewards: what a run learns from them, it does not learn from the rewards."""
    rewards = [sample.reward for sample in samples]
    random.Random(seed).shuffle(rewards)
    return [msgspec.structs.replace(sample, reward=reward) for sample, reward in zip(samples, rewards, strict=True)]


class Loop:
    """One training run in a directory: `weights/`, `checkpoints/`, `metrics.jsonl`. Use once.

    Args:
        rollout: plays an episode; it retries by itself, and raises only what ends the run.
        evaluate: called every `evaluate_every` updates, on the weights just handed over.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        pool: PolicyPool,
        rollout: Rollout,
        tasks: Sequence[str],
        config: LoopConfig,
        directory: Path,
        evaluate: Evaluate | None = None,
        on_step: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        if config.bound > 0 and learner.config.behaviour_cap is None:
            raise ValueError("a staleness bound above 0 needs the decoupled objective: set behaviour_cap")
        self.learner, self.pool, self.config = learner, pool, config
        self.buffer = Buffer(batch=config.batch, group_size=config.group_size, bound=config.bound)
        self._rollout, self._evaluate, self._on_step = rollout, evaluate, on_step
        self._weights, self._checkpoints = WeightStore(directory / "weights"), directory / "checkpoints"
        self._metrics = MetricsLog(directory)
        self._order = task_order(tasks, epochs=config.epochs, seed=config.seed)
        self._trained: set[str] = set()
        self._slots = anyio.CapacityLimiter(config.concurrency)
        self._progress = _Progress()
        self._exhausted = self._stopping = self._ended = False
        self._saved: tuple[int, bool] | None = None
        """The checkpoint that there is: its updates, and whether the run had ended."""

    def drain(self) -> None:
        """Start nothing new; the run ends with a checkpoint after the update in work."""
        self._stopping = True
        self._progress.moved()

    async def run(self) -> None:
        """Train to the end.

        Raises: TrainingDiverged, TrainingStalled, NothingLearned, HandoverFailed, CheckpointInvalid, and what a rollout
        raises.
        """
        await self._begin()
        self._progress.moved()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch)
                await self._measure()  # what an earlier start of this run did not come to
                await self._train(group)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as error:
            raise first_cause(error) from error
        finally:
            self._metrics.close()
        if not self.learner.updates and not self._stopping and self.config.steps != 0:
            raise NothingLearned(self.config, self.buffer.counts)
        self._ended |= not self._stopping
        await self._checkpoint()

    async def _train(self, group: TaskGroup) -> None:
        while not self._is_over():
            self._admit(group)
            moved, asked = self._progress.event, time.monotonic()
            while (samples := self.buffer.take()) is None:
                if self._stopping or (self._exhausted and not self.buffer.running):
                    return
                await moved.wait()
                moved = self._progress.event
                self._admit(group)
            await self._learn(samples, waited_s=time.monotonic() - asked)

    def _is_over(self) -> bool:
        return (
            self._stopping
            or self._ended
            or (self.config.steps is not None and self.learner.updates >= self.config.steps)
        )

    def _admit(self, group: TaskGroup) -> None:
        """Start as many groups as the buffer has room for."""
        while not self._stopping and self.buffer.room():
            following = next(self._order, None)
            if following is None:
                self._exhausted = True
                return
            if not self._was_trained(following):
                self.buffer.admit(following.name)
                for member in range(self.config.group_size):
                    group.start_soon(self._play, group, following, member)

    def _was_trained(self, group: Group) -> bool:
        return any(f"{group.name}/{member}" in self._trained for member in range(self.config.group_size))

    async def _play(self, tasks: TaskGroup, group: Group, member: int) -> None:
        async with self._slots:
            with self._progress.work(f"{group.name}/{member}") as work:
                got = await self._rollout(group, member)
                if isinstance(got, Sample):
                    self.buffer.finish(got)
                else:
                    work.fruitless = got.reason
                    self.buffer.fail(group.name, got.reason)
        self._admit(tasks)

    async def _learn(self, samples: list[Sample], *, waited_s: float) -> None:
        ages = self.buffer.ages(samples)
        if self.config.shuffle_rewards:
            samples = shuffled(samples, seed=f"{self.config.seed}/{self.learner.updates}")
        started = time.monotonic()
        with self._progress.work("update of the weights"):
            # abandoned when the run is cancelled: a learner that hangs must not keep the stall from being told
            metrics = await to_thread.run_sync(self.learner.update, samples, abandon_on_cancel=True)
        updated = time.monotonic()
        with self._progress.work("hand-over of the weights"):
            await self._hand_over()
        self._trained.update(sample.id for sample in samples)
        self.buffer.advance(self.learner.updates)
        handed = time.monotonic()
        tokens = sum(len(sample.ids) for sample in samples)
        line = self._line(
            metrics
            | _staleness(ages)
            | {
                "turns": sum(sample.turns for sample in samples) / len(samples),
                "tokens": tokens,
                "tokens_per_s": tokens / max(1e-9, waited_s + handed - started),
                "wait_s": waited_s,
                "update_s": updated - started,
                "handover_s": handed - updated,
            }
        )
        self._metrics.add(line)
        if self._is_measured() or self.learner.updates % self.config.checkpoint_every == 0:
            await self._checkpoint()
        self._on_step(line | await self._measure())

    def _is_measured(self) -> bool:
        """Whether the policy is to be evaluated as it is now."""
        every, updates = self.config.evaluate_every, self.learner.updates
        return self._evaluate is not None and every > 0 and updates > 0 and updates % every == 0

    async def _measure(self) -> Metrics:
        """Evaluate the policy that is served, where its turn is; the line of this step gets what is measured."""
        if self._evaluate is None or not self._is_measured():
            return {}
        with self._progress.work("evaluation"):
            measured = await self._evaluate(self.learner.updates, self._progress.moved)
        if measured:
            self._metrics.amend({"step": self.learner.updates, **measured})
        return measured

    async def _hand_over(self) -> None:
        """Publish the learner's weights under their version and let every engine take them."""
        version = self.learner.updates
        path = await to_thread.run_sync(
            lambda: self._weights.publish(self.learner.policy, version, probe=self.config.probe)
        )
        await self.pool.update(path, version)
        await to_thread.run_sync(self._weights.prune, self.pool.in_use)

    async def _begin(self) -> None:
        """Go on from the newest checkpoint; serve the weights that the learner has."""
        found = await to_thread.run_sync(newest, self._checkpoints)
        if found is not None:
            await to_thread.run_sync(restore, self.learner, found)
            self._trained, self._ended = set(found.trained), found.extra.get("ended", False)
            self._saved = (self.learner.updates, self._ended)
        last = self._metrics.open(self.learner.updates)
        self.buffer.go_on({name.removeprefix(_EPISODES): n for name, n in last.items() if name.startswith(_EPISODES)})
        if self.learner.updates > self.buffer.version:
            self.buffer.advance(self.learner.updates)
        await self._hand_over()

    async def _checkpoint(self) -> None:
        def save() -> None:
            save_checkpoint(
                self._checkpoints,
                self.learner,
                version=self.learner.updates,
                trained=self._trained,
                extra={"seed": self.config.seed, "ended": self._ended},
                keep=self.config.checkpoint_keep,
            )

        if self._saved != (self.learner.updates, self._ended):
            await to_thread.run_sync(save)
            self._saved = (self.learner.updates, self._ended)

    def _line(self, metrics: Metrics) -> dict[str, Any]:
        self.buffer.check()
        counts = {f"{_EPISODES}{name}": count for name, count in self.buffer.counts.items()}
        return {"step": self.learner.updates, **metrics, **counts, **self.pool.checked}

    async def _watch(self) -> None:
        """End the run when nothing has moved for as long as its patience."""
        while True:
            left_s = self._progress.moved_at + self.config.patience_s - time.monotonic()
            if left_s <= 0:
                raise TrainingStalled(self.config.patience_s, self._progress.waiting())
            await anyio.sleep(left_s)


@dataclass
class _Progress:
    """What is in work and when something last came to an end."""

    event: anyio.Event = field(default_factory=anyio.Event)
    """Set when something comes to an end; a new one takes its place."""
    moved_at: float = field(default_factory=time.monotonic)
    _since: dict[str, float] = field(default_factory=dict)
    _fruitless: Counter[str] = field(default_factory=Counter)
    """What ended for nothing since then, by reason."""

    def work(self, name: str) -> _Work:
        return _Work(self, name)

    def moved(self) -> None:
        self.moved_at = time.monotonic()
        self._fruitless.clear()
        self._wake()

    def _wake(self) -> None:
        self.event.set()
        self.event = anyio.Event()

    def started(self, name: str) -> None:
        self._since[name] = time.monotonic()

    def ended(self, name: str, fruitless: str) -> None:
        del self._since[name]
        if fruitless:
            self._fruitless[fruitless] += 1
            self._wake()
        else:
            self.moved()

    def waiting(self) -> list[str]:
        now = time.monotonic()
        vain = [f"{count} episodes without a reward ({reason})" for reason, count in self._fruitless.most_common(2)]
        work = sorted(self._since.items(), key=lambda item: item[1])
        return [*vain, *(f"{name} for {now - since:.0f} s" for name, since in work)]


@dataclass
class _Work:
    progress: _Progress
    name: str
    fruitless: str = ""
    """Set by who works: it came to nothing, for this reason."""

    def __enter__(self) -> _Work:
        self.progress.started(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.ended(self.name, self.fruitless)


def _staleness(ages: Collection[int]) -> Metrics:
    return {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))}
