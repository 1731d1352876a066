"""One training run from a recipe to a trained policy: what the command calls, and tests.

    start -> fine-tuning -> PPO -> `policy/`, a Hugging Face directory; measured on held-out tasks all along

Invariants:
- Everything of a run lies in its directory; started again there with the same recipe, it goes on where its checkpoints
  are. Another recipe is refused, and so are another model, other tasks and other demonstrations.
- A run that is drained writes no `policy/`.
- What is measured is served by the engines that rollouts use, with the limits of evaluation.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from torch import nn

from runtime.blobs import Blobs
from runtime.errors import UserError
from runtime.events import OnEvent, fan_out
from runtime.limits import Limits
from runtime.stage import Rejected
from runtime.task import read_task
from runtime.trajectory import Trajectory, segments
from sandbox.engine import Engine
from trainer.arena import Arena
from trainer.basis import Basis, Player, basis_of
from trainer.evaluate import RESULT, Evaluation, rate, read_evaluation, run_evaluation
from trainer.handover import PolicyPool, WeightStore
from trainer.loop import Group, Loop, LoopConfig, Missing
from trainer.model import Critic, load_model, recompute, save_model
from trainer.parallel import ALONE, Team, open_team, own_device
from trainer.policy.agent import TokenPolicy, sample_of
from trainer.ppo import Learner, Metrics
from trainer.recipe import Recipe
from trainer.record import identify, record
from trainer.rollout import RolloutAsked, RolloutContext, persevere
from trainer.sample import Sample
from trainer.serving import load_policy, open_encoder, open_pool, probe_ids
from trainer.sft import example_of, fine_tune
from trainer.small import read_demonstrations
from trainer.telling import told
from trainer.tokens import Encoder


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a recipe is run on."""

    model: Path
    """A Hugging Face directory."""
    tasks: tuple[Path, ...]
    held_out: tuple[Path, ...]
    out: Path
    demonstrations: tuple[Path, ...] = ()
    """Trajectories, one a line."""
    engine_urls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a run works with."""

    engine: Engine
    limits: Limits
    run_id: str
    say: Callable[[str], None] = lambda _: None
    on_step: Callable[[dict[str, Any]], None] = lambda _: None
    on_drain: Callable[[Callable[[], None]], None] = lambda _: None
    """Is handed what the first Ctrl-C calls."""
    on_event: OnEvent = lambda _: None
    """Is told of every episode; those of a measurement carry its own run."""


async def run_training(recipe: Recipe, inputs: Inputs, tools: Tools) -> bool:
    """Carry the recipe out.

    Returns: whether it has come to its end; False when it was drained before.

    Raises: UserError, TaskInvalid, TrajectoryInvalid, TrainingDiverged, TrainingStalled, NothingLearned,
    HandoverFailed, PolicyUnavailable, CheckpointInvalid, SandboxError.
    """
    encoder = open_encoder(recipe, inputs.model)
    shown = await to_thread.run_sync(read_demonstrations, inputs.demonstrations) if recipe.sft else []
    known = await to_thread.run_sync(identify, inputs)
    if both := sorted({*known.tasks.values()} & {*known.held_out.values()}):
        tools.say(f"{len(both)} held-out tasks are trained on as well: what they measure is memory, not skill")
    with open_team() as team:
        model = await to_thread.run_sync(_load, recipe, inputs.model, team)
        await to_thread.run_sync(record, recipe, known, inputs.out)
        sampled = recipe.ppo is not None or bool(inputs.held_out)
        async with open_pool(recipe, inputs.model, inputs.engine_urls) if sampled else nullcontext() as pool:
            run = _Run(recipe, inputs, tools, encoder=encoder, pool=pool, model=model, team=team)
            if recipe.sft is not None:
                await run.evaluate("start")
                await run.fine_tune(shown)
            await run.evaluate("before_ppo" if recipe.ppo else "end")
            if recipe.ppo is not None:
                await run.ppo()
        if not run.drained:
            await to_thread.run_sync(export, model, inputs.model, inputs.out / "policy")
        return not run.drained


class _Run:
    """The state of one run."""

    def __init__(
        self,
        recipe: Recipe,
        inputs: Inputs,
        tools: Tools,
        *,
        encoder: Encoder,
        pool: PolicyPool | None,
        model: nn.Module,
        team: Team,
    ) -> None:
        self._recipe, self._inputs, self._tools, self._team = recipe, inputs, tools, team
        self._encoder, self._served, self._model = encoder, pool, model
        self._arena = Arena(tools.engine, tools.limits, run_id=tools.run_id)
        self._weights = WeightStore(inputs.out / "weights")
        self._blobs = Blobs(inputs.out / "blobs")
        self.drained = False
        self._drains: list[Callable[[], None]] = []
        """Of what is in work."""
        tools.on_drain(self._drain)

    def _drain(self) -> None:
        self.drained = True
        for act in self._drains:
            act()

    @contextmanager
    def _stops(self, act: Callable[[], None]) -> Iterator[None]:
        """Within it a drain calls `act`; at once when it has come already."""
        self._drains.append(act)
        if self.drained:
            act()
        try:
            yield
        finally:
            self._drains.remove(act)

    @property
    def _pool(self) -> PolicyPool:
        assert self._served is not None, "a run that only fine-tunes samples nothing"
        return self._served

    async def fine_tune(self, shown: Sequence[Trajectory]) -> None:
        """Train on the demonstrations, or take what an earlier start of this run made of them."""
        config, done, checkpoints = self._recipe.sft, self._inputs.out / "sft", self._inputs.out / "sft-checkpoints"
        assert config is not None
        if done.is_dir():
            self._model.load_state_dict((await to_thread.run_sync(load_model, done)).state_dict())
            return
        if self.drained:
            return
        self._tools.say(f"fine-tuning on {len(shown)} demonstrations")
        examples = [example_of(part, self._encoder) for whole in shown for part in segments(whole)]
        steps = -(-len(examples) // config.batch) * config.epochs

        def stepped(step: int, metrics: Metrics) -> bool:
            if (step + 1) * 5 // steps > step * 5 // steps:
                self._tools.say(f"fine-tuning: step {step + 1} of {steps}, loss {metrics['loss']:.3f}")
            return self.drained

        def work() -> None:
            recipe = self._recipe
            fine_tune(
                self._model,
                examples,
                config,
                seed=recipe.seed,
                on_step=stepped,
                team=self._team,
                lora=recipe.lora,
                checkpoints=checkpoints,
            )
            if not self.drained:
                export(self._model, self._inputs.model, done)
                shutil.rmtree(checkpoints, ignore_errors=True)

        await to_thread.run_sync(work)

    async def ppo(self) -> None:
        recipe = self._recipe
        assert recipe.ppo is not None
        if self.drained:
            return
        names = {path.name: path for path in await to_thread.run_sync(self._short_enough)}
        self._tools.say(f"PPO on {len(names)} tasks, {recipe.batch} episodes an update")
        context = self._context("rollout")
        critic = Critic(copy.deepcopy(self._model)) if recipe.ppo.advantage == "gae" else None
        learner = Learner(
            self._model,
            critic,
            recipe.ppo,
            seed=recipe.seed,
            evidence=self._keep_evidence,
            team=self._team,
            lora=recipe.lora,
        )

        async def rollout(group: Group, member: int) -> Sample | Missing:
            message = RolloutAsked(
                item=f"{group.name}/{member}",
                run_id=self._tools.run_id,
                task=str(names[group.task]),
                group=group.name,
            )
            playing = persevere(message, context, attempts=recipe.rollout.attempts)
            played = await told(self._tools.on_event, message, playing)
            if isinstance(played, Rejected):
                return Missing(reason=played.reason)
            return learnable(played, group=group.name)

        loop = Loop(
            learner=learner,
            pool=self._pool,
            rollout=rollout,
            tasks=list(names),
            config=_loop_config(recipe, probe_ids(self._encoder)),
            directory=self._inputs.out,
            evaluate=self._evaluate_step if self._inputs.held_out else None,
            on_step=self._tools.on_step,
        )

        with self._stops(loop.drain):
            await loop.run()
        if self._inputs.held_out and not self.drained:
            await self._measure("end")  # the engines serve what the loop handed over last

    async def evaluate(self, name: str) -> None:
        """Measure the model as it is before PPO, unless this run has done so before."""
        if self._inputs.held_out and not self.drained and not (self._place(name) / RESULT).exists():
            path = await to_thread.run_sync(
                lambda: self._weights.publish(self._model, 0, probe=probe_ids(self._encoder))
            )
            await self._pool.update(path, 0)
            await self._measure(name)

    async def _evaluate_step(self, step: int, moved: Callable[[], None]) -> Metrics:
        evaluation = await self._measure(f"step-{step:06d}", moved=moved)
        got = None if evaluation is None else rate(evaluation.tasks, 1, resamples=1).value
        return {} if got is None else {"held_out_pass_rate": got}

    async def _measure(self, name: str, *, moved: Callable[[], None] = lambda: None) -> Evaluation | None:
        place = self._place(name)
        if (place / RESULT).exists():
            return read_evaluation(place)
        await anyio.Path(place).mkdir(parents=True, exist_ok=True)
        context = self._context("evaluate")
        basis = await to_thread.run_sync(self._basis, context)
        with ExitStack() as running:
            evaluation = await run_evaluation(
                context,
                self._inputs.held_out,
                place,
                run_id=f"{self._tools.run_id}-{name}",
                basis=basis,
                limits=self._tools.limits,
                concurrency=self._recipe.rollout.concurrency,
                policy_version=self._pool.version,
                announce=lambda runner: running.enter_context(self._stops(runner.drain)),
                on_event=fan_out(self._tools.on_event, lambda _: moved()),
            )
        if evaluation is not None:
            got = rate(evaluation.tasks, 1, resamples=self._recipe.evaluate.resamples, seed=self._recipe.seed)
            self._tools.say(f"held-out pass rate, {name}: {got.shown()}")
        return evaluation

    def _basis(self, context: RolloutContext) -> Basis:
        return basis_of(
            self._inputs.held_out,
            context.settings,
            player=Player(model=context.model, served_by=self._recipe.serve.engine),
            engine=self._tools.engine.name,
            grade_overflow=context.grade_overflow,
            attempts=self._recipe.evaluate.attempts,
            seed=self._recipe.seed,
        )

    def _context(self, source: Any) -> RolloutContext:
        recipe = self._recipe
        return RolloutContext(
            arena=self._arena,
            policy=TokenPolicy(self._pool, self._encoder, seed=recipe.seed),
            settings=recipe.rollout_agent() if source == "rollout" else recipe.evaluation_agent(),
            blobs=self._blobs,
            source=source,
            model=recipe.model.name,
            grade_overflow=recipe.rollout.context_overflow == "grade",
        )

    def _place(self, name: str) -> Path:
        return self._inputs.out / "evaluations" / name

    def _short_enough(self) -> list[Path]:
        """Tasks whose instruction the recipe allows. Raises: UserError when none is."""
        most = self._recipe.rollout.max_instruction_tokens
        fit = [t for t in self._inputs.tasks if len(self._encoder.text(read_task(t).instruction)) <= most]
        if len(fit) < len(self._inputs.tasks):
            self._tools.say(f"{len(self._inputs.tasks) - len(fit)} tasks are left out: longer than {most} tokens")
        if not fit:
            raise UserError("rollout.max_instruction_tokens", f"every task is longer than {most} tokens", "Raise it")
        passes = self._recipe.train.epochs
        if len(fit) * passes < self._recipe.rollout.groups:
            raise UserError(
                "rollout.groups",
                f"an update takes {self._recipe.rollout.groups} tasks, and {passes} pass(es) over {len(fit)} have less",
                "Give more tasks, lower it, or raise train.epochs",
            )
        return fit

    def _keep_evidence(self, reason: str, samples: Sequence[Sample]) -> None:
        """Keep the samples of a skipped optimiser step."""
        digest = self._blobs.put(msgspec.json.encode({"reason": reason, "samples": samples}))
        self._tools.say(f"skipped an optimiser step: {reason} (samples: blob {digest[:12]})")


def learnable(played: Trajectory, *, group: str) -> Sample | Missing:
    """What there is to learn from a graded episode: nothing, where its task left no room for a single turn."""
    assert played.reward is not None
    if not played.turns:
        return Missing(reason=str(played.failure))
    return sample_of(played, group=group, reward=played.reward)


def export(model: nn.Module, source: Path, directory: Path) -> None:
    """Write a whole Hugging Face directory: the weights in float32 and the tokeniser of `source`. Atomic."""
    fresh = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    save_model(model, fresh)
    for path in source.iterdir():
        if path.name.startswith(("tokenizer", "special_tokens", "chat_template", "vocab", "merges")):
            shutil.copy2(path, fresh / path.name)
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)


def _load(recipe: Recipe, directory: Path, team: Team) -> nn.Module:
    """The model to train; a team's plain copy stays in the memory of the host."""
    model = load_policy(directory)
    if recipe.train.gradient_checkpointing:
        recompute(model)
    return model.to(own_device()) if team is ALONE else model


def _loop_config(recipe: Recipe, probe: tuple[int, ...]) -> LoopConfig:
    return LoopConfig(
        batch=recipe.batch,
        group_size=recipe.rollout.group_size,
        bound=recipe.rollout.bound,
        concurrency=recipe.rollout.concurrency,
        epochs=recipe.train.epochs,
        steps=recipe.train.steps,
        seed=recipe.seed,
        checkpoint_every=recipe.train.checkpoint_every,
        checkpoint_keep=recipe.train.checkpoint_keep,
        evaluate_every=recipe.train.evaluate_every,
        patience_s=recipe.train.patience_s,
        shuffle_rewards=recipe.train.shuffle_rewards,
        probe=probe,
    )
