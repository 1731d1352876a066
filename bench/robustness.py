"""Robustness by synthesis: fine-tuning on errands with planted mistakes and their repairs, against the same errands
done without a mistake; measured on errands whose first command fails by design.

Both arms see as many demonstrations, of the same errands in the same order; in one, every other demonstration begins
with a mistake, which is shown and not imitated (loss weight 0), and goes on with its repair. Measured is at temperature
0, in real sandboxes, on new errands that are all obstructed. *Recovery* is the share of passed episodes among those
whose first command failed.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch
from anyio import to_thread

from generators.obstacles import AGENT, Obstacle, draw_errand, errand_demonstrations, errand_task
from runtime.blobs import Blobs
from runtime.limits import Limits
from runtime.settings import LimitSettings
from runtime.task import write_task
from runtime.trajectory import Trajectory
from sandbox.engine import Engine
from sandbox.open import Choice, open_engine
from trainer.arena import Arena
from trainer.evaluate import Evaluation, bootstrap, read_trajectories, run_evaluation
from trainer.model import load_model
from trainer.policy.agent import TokenPolicy
from trainer.policy.torch_engine import TorchEngine
from trainer.rollout import RolloutContext
from trainer.sft import SFTConfig, example_of, fine_tune
from trainer.small import make_policy
from trainer.tokens import FORMATS, Encoder

SAY = partial(print, flush=True)
ARMS = {"clean": 0.0, "injected": 0.5}
"""Share of demonstrations that begin with a mistake."""
SFT = SFTConfig(learning_rate=2e-3, batch=16, epochs=1, weight_decay=0.01, max_tokens=512, row_tokens=1024)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one seed."""

    episodes: int
    passed: int
    failed_first: int
    recovered: int
    by_obstacle: dict[str, tuple[int, int]]
    """Recovered of those that failed first, by what was in the way."""
    learn_s: float
    """CPU seconds of the fine-tuning."""

    @property
    def recovery(self) -> float:
        return self.recovered / max(1, self.failed_first)

    @property
    def pass_rate(self) -> float:
        return self.passed / max(1, self.episodes)


async def measure(
    choice: Choice,
    *,
    seeds: Sequence[int],
    demonstrations: int,
    tasks: int,
    cache: Path,
    state: Path,
    say: Callable[[str], None] = SAY,
) -> dict[str, list[Outcome]]:
    """Train and measure both arms at each seed; print each and what they come to."""
    say(f"{demonstrations} demonstrations an arm, {tasks} obstructed errands, seeds {', '.join(map(str, seeds))}")
    found: dict[str, list[Outcome]] = {arm: [] for arm in ARMS}
    async with open_engine(choice, cache=cache, state=state, progress=lambda _: None) as engine:
        for seed in seeds:
            for arm in ARMS:
                place = state / "robustness" / f"{arm}-{seed}"
                shutil.rmtree(place, ignore_errors=True)
                got = await _arm(engine, arm, seed, demonstrations, tasks, place)
                found[arm].append(got)
                kinds = ", ".join(f"{name} {n} of {of}" for name, (n, of) in got.by_obstacle.items())
                say(
                    f"seed {seed} {arm:9} passed {got.passed} of {got.episodes}; recovered {got.recovered} of"
                    f" {got.failed_first} whose first command failed ({kinds}); {got.learn_s:.0f} s of CPU to learn"
                )
    for arm, outcomes in found.items():
        say(f"{arm:9} recovery  {_shown([o.recovery for o in outcomes])}")
        say(f"{arm:9} pass rate {_shown([o.pass_rate for o in outcomes])}")
    gains = [b.recovery - a.recovery for a, b in zip(found["clean"], found["injected"], strict=True)]
    say(f"injected - clean, recovery, paired by seed: {_shown(gains)}")
    return found


async def _arm(engine: Engine, arm: str, seed: int, demonstrations: int, tasks: int, place: Path) -> Outcome:
    shown = list(errand_demonstrations(count=demonstrations, seed=seed, injected=ARMS[arm]))
    learn_s = await to_thread.run_sync(_learn, shown, seed, place / "policy")
    got, trajectories = await _evaluate(engine, seed, tasks, place)
    assert not any(attempt.reward is None for task in got.tasks for attempt in task.attempts), got.tasks
    failed = [t for t in trajectories if t.turns and t.turns[0].exit_code not in (0, None)]
    passed = {t.trajectory_id for t in trajectories if t.reward == 1.0}
    return Outcome(
        episodes=len(trajectories),
        passed=len(passed),
        failed_first=len(failed),
        recovered=sum(t.trajectory_id in passed for t in failed),
        by_obstacle={
            kind: (
                sum(t.trajectory_id in passed for t in failed if t.task.startswith(kind)),
                sum(t.task.startswith(kind) for t in failed),
            )
            for kind in ("locked", "missing")
        },
        learn_s=learn_s,
    )


def _learn(shown: Sequence[Trajectory], seed: int, directory: Path) -> float:
    """Write the policy that these demonstrations make of random weights; returns the CPU seconds."""
    from trainer.training import export

    torch.set_num_threads(1)
    started = time.thread_time()
    start = directory.with_name("start")
    make_policy(shown, start, seed=seed)
    encoder, model = Encoder(start / "tokenizer.json", FORMATS["small"]), load_model(start)
    fine_tune(model, [example_of(trajectory, encoder) for trajectory in shown], SFT, seed=seed)
    export(model, start, directory)
    return time.thread_time() - started


async def _evaluate(engine: Engine, seed: int, tasks: int, place: Path) -> tuple[Evaluation, list[Trajectory]]:
    roots = await to_thread.run_sync(lambda: list(_write_tasks(seed, tasks, place / "tasks")))
    encoder = Encoder(place / "policy" / "tokenizer.json", FORMATS["small"])
    limits = Limits(LimitSettings().sizes())
    async with TorchEngine(load_model(place / "policy")) as sampler:
        context = RolloutContext(
            arena=Arena(engine, limits, run_id="bench"),
            policy=TokenPolicy(sampler, encoder, seed=seed),
            settings=AGENT.model_copy(update={"temperature": 0.0}),
            blobs=Blobs(place / "blobs"),
            source="evaluate",
        )
        got = await run_evaluation(
            context,
            roots,
            place / "result",
            run_id="bench",
            engine=engine.name,
            limits=limits,
            attempts=1,
            concurrency=8,
        )
    assert got is not None
    return got, list(read_trajectories(place / "result"))


def _write_tasks(seed: int, count: int, directory: Path) -> Iterator[Path]:
    for number in range(count):
        obstacle: Obstacle = "missing" if number % 2 else "locked"
        root = directory / f"{obstacle}-{number:03d}"
        write_task(errand_task(draw_errand(f"held-out-{seed}-{number}", obstacle)), root)
        yield root


def _shown(values: Sequence[float]) -> str:
    low, high = bootstrap(values, resamples=2000, seed=0)
    return f"{statistics.fmean(values):+.1%} ({low:+.1%} to {high:+.1%})"
