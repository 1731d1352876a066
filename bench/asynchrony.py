"""Asynchronous against synchronous training on the same episodes: samples a second, and how long the learner waits.

Real are the loop, the buffer, the hand-over of weights, the agent loop, sandboxes and grading. Simulated is time: each
answer takes a log-normal draw to decode, the same for an episode in both runs, and an update takes a fixed time. So the
ratio is that of a machine whose sampler and learner do not share their processors.

Where the gain comes from: synchronous, every step waits for its slowest episode and then for its update; asynchronous,
the learner takes what is finished while the slow ones go on. It is at most (slowest of a batch + update) / update.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import torch

from generators.demonstrate import demonstrations
from runtime.agent.settings import AgentSettings
from runtime.blobs import Blobs
from runtime.limits import Limits
from runtime.settings import LimitSettings
from runtime.stage import Rejected
from runtime.task import FINAL_TESTS, Task, TaskConfig, write_task
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine
from sandbox.open import Choice, open_engine
from sandbox.spec import File
from trainer.arena import Arena
from trainer.handover import PolicyPool
from trainer.loop import Group, Loop, LoopConfig, Missing
from trainer.model import load_model
from trainer.policy.agent import TokenPolicy, sample_of
from trainer.policy.protocol import Continuation, Sampling
from trainer.policy.torch_engine import TorchEngine
from trainer.ppo import Learner, Metrics, PPOConfig
from trainer.rollout import RolloutAsked, RolloutContext, persevere
from trainer.sample import Sample
from trainer.small import make_policy
from trainer.tokens import FORMATS, Encoder

SAY = partial(print, flush=True)
_TASKS = 4
_GROUP = 4


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated, and how much of it is asked for."""

    samples: int = 256
    batch: int = 16
    bounds: tuple[int, ...] = (2, 4)
    """Of the asynchronous runs; the synchronous one has 0."""
    concurrency: int = 64
    """Episodes in work at once, in both runs."""
    median_s: float = 2.0
    """To decode one answer; an episode has two."""
    sigma: float = 1.0
    """Of the log-normal: the slowest hundredth takes ten times the median."""
    update_s: float = 10.0
    """Between the mean of an episode and the slowest of a batch."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one run came to."""

    samples: int
    wall_s: float
    """From the first episode's start to the end of the last update."""
    idle: float
    """Share of the time between the first update and the last in which no update was in work."""
    dropped: int
    """Samples that were too old when they were taken."""
    staleness: float

    @property
    def rate(self) -> float:
        return self.samples / self.wall_s


async def measure(choice: Choice, times: Times, *, cache: Path, state: Path, say: Callable[[str], None] = SAY) -> float:
    """Run all and print them; returns the ratio of the last one's rate to the synchronous one's."""
    say(
        f"{times.samples} samples in batches of {times.batch}; two answers an episode, each log-normal with median"
        f" {times.median_s:g} s and sigma {times.sigma:g}; update {times.update_s:g} s;"
        f" at most {times.concurrency} episodes at once"
    )
    async with open_engine(choice, cache=cache, state=state, progress=lambda _: None) as engine:
        say("bound   samples/s   wall s   learner idle   staleness   dropped   ratio")
        synchronous = run = await _run(engine, times, 0)
        _tell(0, run, 1.0, say)
        for bound in times.bounds:
            run = await _run(engine, times, bound)
            _tell(bound, run, run.rate / synchronous.rate, say)
    return run.rate / synchronous.rate


def _tell(bound: int, run: Run, ratio: float, say: Callable[[str], None]) -> None:
    rates = f"{bound:5} {run.rate:11.2f} {run.wall_s:8.1f} {run.idle:13.1%}"
    say(f"{rates} {run.staleness:11.2f} {run.dropped:9} {ratio:7.2f}")


class Decoder(TorchEngine):
    """Serves and checks weights like any engine; its answers are known, and take a drawn time."""

    def __init__(self, model: Any, encoder: Encoder, times: Times) -> None:
        super().__init__(model)
        self._encoder, self._times = encoder, times

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        task, _, _, turn = request_id.split("/")
        version = self.version
        await anyio.sleep(random.Random(request_id).lognormvariate(0.0, self._times.sigma) * self._times.median_s)
        text = f"<command>echo {task} > {task}.txt</command>" if turn == "1" else "<action>done</action>"
        said = [*self._encoder.text(text), *self._encoder.stop_ids[:1]]
        # each token carries the version under which it would have been decoded: first and last are all that is counted
        versions = [version] * (len(said) - 1) + [self.version]
        return Continuation(ids=said, logprobs=[-1.0] * len(said), versions=versions, finish="stop")


class PacedLearner(Learner):
    """A learner whose update takes at least a given time."""

    update_s: float = 0.0
    spans: list[tuple[float, float]]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        started = time.monotonic()
        metrics = super().update(samples)
        time.sleep(max(0.0, started + self.update_s - time.monotonic()))
        self.spans.append((started, time.monotonic()))
        return metrics


async def _run(engine: Engine, times: Times, bound: int) -> Run:
    directory = Path(tempfile.mkdtemp(prefix="bench-asynchrony-"))
    try:
        return await _train(engine, times, bound, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _train(engine: Engine, times: Times, bound: int, directory: Path) -> Run:
    torch.set_num_threads(1)  # the other core is for sandboxes and grading
    shown = list(demonstrations(count=64, seed=0, slips=0.0, levels=[1]))
    await anyio.to_thread.run_sync(make_policy, shown, directory / "model")
    encoder = Encoder(directory / "model" / "tokenizer.json", FORMATS["small"])
    roots = {name: _write_task(directory / "tasks", name) for name in (f"task{n}" for n in range(_TASKS))}
    steps = times.samples // times.batch
    learner = _learner(directory / "model", times, decoupled=bound > 0)
    arena = Arena(engine, Limits(LimitSettings(run=times.concurrency).sizes()), run_id="bench")
    for root in roots.values():
        await arena.place(root)
    lines: list[dict[str, Any]] = []
    async with PolicyPool({"decoder": Decoder(load_model(directory / "model"), encoder, times)}) as pool:
        context = RolloutContext(
            arena=arena,
            policy=TokenPolicy(pool, encoder),
            settings=AgentSettings(prompt="terse", max_turns=3, context_tokens=512, min_answer_tokens=8),
            blobs=Blobs(directory / "blobs"),
        )

        async def rollout(group: Group, member: int) -> Sample | Missing:
            item = f"{group.name}/{member}"
            asked = RolloutAsked(item=item, run_id="bench", task=str(roots[group.task]), group=group.name)
            played = await persevere(asked, context, attempts=5)
            if isinstance(played, Rejected):
                return Missing(reason=played.reason)
            assert played.reward == 1.0, played
            return sample_of(played, group=group.name, reward=played.reward)

        loop = Loop(
            learner=learner,
            pool=pool,
            rollout=rollout,
            tasks=list(roots),
            config=LoopConfig(
                batch=times.batch,
                group_size=_GROUP,
                bound=bound,
                concurrency=times.concurrency,
                epochs=times.samples,
                steps=steps,
                checkpoint_every=steps,
            ),
            directory=directory / "run",
            on_step=lines.append,
        )
        started = time.monotonic()
        await loop.run()
    return _summary(learner.spans, lines, started, times.batch)


def _summary(spans: Sequence[tuple[float, float]], lines: Sequence[dict[str, Any]], started: float, batch: int) -> Run:
    first, last = spans[0][0], spans[-1][1]
    return Run(
        samples=batch * len(spans),
        wall_s=last - started,
        idle=1.0 - sum(end - begin for begin, end in spans) / (last - first),
        dropped=int(lines[-1].get("episodes_dropped", 0)),
        staleness=statistics.fmean(line["staleness_mean"] for line in lines),
    )


def _learner(model: Path, times: Times, *, decoupled: bool) -> PacedLearner:
    config = PPOConfig(
        advantage="rloo",
        policy_lr=1e-6,
        epochs=1,
        policy_minibatch=times.batch,
        row_tokens=1024,
        temperature=1.0,
        behaviour_cap=2.0 if decoupled else None,
        max_gap=1e9,  # the answers are not this model's own
        max_kl=1e9,
    )
    learner = PacedLearner(load_model(model), None, config)
    learner.update_s, learner.spans = times.update_s, []
    return learner


def _write_task(root: Path, name: str) -> Path:
    """A task that is done when `<name>.txt` says `<name>`."""
    test = f'def test_it() -> None:\n    assert open("/home/agent/{name}.txt").read() == "{name}\\n"\n'
    known = {"environment": {"network_mode": "no-network"}, "metadata": {"termloom": {"inventory": ["test_it"]}}}
    task = Task(
        config=TaskConfig.model_validate(known),
        instruction=f"Write {name} into {name}.txt.\n",
        files=(
            File(path="environment/Dockerfile", data=BASE_DOCKERFILE.encode()),
            File(path="tests/test.sh", data=b"#!/bin/bash\nexit 1\n", mode=0o755),
            File(path=FINAL_TESTS, data=test.encode()),
        ),
    )
    write_task(task, root / name)
    return root / name
