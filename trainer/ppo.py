"""PPO: one update from one batch of finished episodes. Reads like the paper (Schulman et al. 2017), arXiv 1707.06347.

Departures from textbook PPO, each held by a test in `tests/trainer/test_ppo.py`:
 1. Advantages are computed on trainable tokens only, the reward on the last of them (`trainer.advantages`).
 2. The clip range is asymmetric (0.2 below, 0.28 above), there is no KL term, and the loss is the mean over
    sequences of the mean over tokens: the recipe of Endless Terminals.
 3. With a staleness bound above 0 the objective is decoupled: the ratio is clipped against the *proximal* policy
    (the learner's weights when the update begins) and weighted by the truncated ratio proximal/behaviour
    (`behaviour_cap`). At bound 0 the behaviour policy is the proximal one, and the behaviour log-probabilities
    recorded by the sampler are used as they are.
 4. Policy and critic are separate networks with their own optimiser, learning rate and mini-batch size; the critic
    may train alone for the first steps.
 5. A step whose loss or gradient is not finite is skipped, counted and kept as evidence; too many in a row end the
    run. Tripwires on KL and ratio end an update's remaining epochs when the policy has moved too far; one on the gap
    between behaviour and learner refuses the update.
 6. Infrastructure failures are no samples: they never reach this module, so no mean and no baseline sees them.
 7. Negative advantages may weigh less (`negative_weight`); they weigh as much as positive ones by default.
 8. A team of processes (`trainer.parallel`) makes the same update as one, to rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from runtime.errors import RuntimeFault
from trainer.advantages import gae, grpo, place_rewards, rloo
from trainer.batch import Columns, collate, plan
from trainer.lora import LoRAConfig, adapted, bring
from trainer.losses import Entropy, Reduction, policy_loss, reduce, value_loss
from trainer.model import Critic, Deal, Scorer, critic_values, policy_logprobs
from trainer.parallel import ALONE, Parts, Team
from trainer.sample import Sample


class PPOConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number of the update. The defaults are those of Endless Terminals for Llama-3.2-3B."""

    advantage: Literal["gae", "grpo", "rloo"] = "gae"
    gamma: float = 1.0
    lam: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    value_clip: float = 0.2
    reduction: Reduction = "sequence_mean"
    negative_weight: float = 1.0
    """Of advantages below 0. Less than 1 for a policy that fails most of the time: pushed away from all that it tries
    before it has found what is right, it ends where nobody would look."""
    entropy_coef: float = 0.0
    temperature: float = 0.7
    """The sampler's: log-probabilities are taken of logits / temperature on both sides."""
    policy_lr: float = 5e-7
    critic_lr: float = 1e-6
    policy_anneal: int | None = None
    """Updates over which `policy_lr` falls linearly to 0; None: it stays as it is, as published."""
    warmup_steps: int = 10
    """Optimiser steps over which the learning rates rise linearly."""
    grad_clip: float = 1.0
    weight_decay: float = 0.01
    epochs: int = 2
    policy_minibatch: int = 256
    """Episodes per policy step (16 prompts x 16 samples)."""
    critic_minibatch: int = 128
    micro_batch: int = 16
    """Episodes forwarded at once: bounds memory, changes no gradient."""
    row_tokens: int = 16_384
    critic_warmup: int = 0
    """Updates in which the critic trains alone."""
    behaviour_cap: float | None = None
    """Truncation of proximal/behaviour; None = not decoupled, allowed at staleness bound 0 only."""
    max_kl: float = 0.2
    """Tripwire: when a mini-batch's approximate KL passes it, the update's remaining epochs are left out."""
    max_ratio: float = 1e4
    """Tripwire: when a token's probability has grown by more since sampling, the remaining epochs are left out."""
    max_gap: float = 0.5
    """Tripwire: when behaviour and learner disagree by more nats a token on average, the update is refused. Measured
    over the whole batch; without `behaviour_cap`, when that takes no pass of its own, over the first mini-batch."""
    max_skips: int = 5
    """Non-finite steps of one network in a row that end the run."""
    bf16: bool = False
    """Forward in bfloat16; weights, gradients and optimiser stay float32."""


class TrainingDiverged(RuntimeFault):
    """The update cannot go on: too many non-finite steps, or sampler and learner disagree."""

    def __init__(self, step: int, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"training stopped at optimiser step {step}: {reason}")


Metrics = dict[str, float]
Evidence = Callable[[str, Sequence[Sample]], None]
"""Called with a reason and the samples of a skipped step."""


class Learner:
    """Policy, critic and their optimisers. `update` is one PPO iteration; nothing else changes the weights.

    `policy` is what others see: a plain model. What is trained is that model itself, or, with adapters or in a team,
    a model of its own of which `policy` is kept an up-to-date copy. A follower's learner is made from empty modules.
    """

    def __init__(
        self,
        policy: nn.Module,
        critic: Critic | None,
        config: PPOConfig,
        *,
        seed: int = 0,
        evidence: Evidence | None = None,
        team: Team = ALONE,
        lora: LoRAConfig | None = None,
    ) -> None:
        if config.advantage == "gae" and critic is None:
            raise ValueError("advantage 'gae' needs a critic")
        self.policy, self.config, self.seed, self.team = policy, config, seed, team
        self.updates = 0
        self.steps = {"policy": 0, "critic": 0}
        self.skips = {"policy": 0, "critic": 0}
        """Non-finite steps in a row, of each network."""
        self._evidence = evidence or (lambda reason, samples: None)
        team.tell("learn", config=config, seed=seed, critic=critic is not None)
        self.trained = policy if lora is None else adapted(policy, lora, seed=seed)
        self.scorer = team.spread(Scorer(self.trained), bf16=config.bf16)
        self.trained = self.scorer.get_submodule("model")
        self.critic = None if critic is None else team.spread(_adapted_critic(critic, lora, seed), bf16=config.bf16)
        self.policy_optimiser = adamw(self.scorer, config.policy_lr, config.weight_decay)
        self.critic_optimiser = adamw(self.critic, config.critic_lr, config.weight_decay) if self.critic else None

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """One iteration over a batch. Deterministic in (weights, samples, seed, number of updates so far).

        Raises: TrainingDiverged.
        """
        self.team.tell("update", samples=samples)
        batch = collate(samples).to(next(self.scorer.parameters()).device)
        metrics: dict[str, list[float]] = defaultdict(list)
        with torch.no_grad():
            proximal = self._proximal(batch)
            values = self._old_values(batch)
        advantages, returns = self._advantages(batch, values)
        shuffle = torch.Generator().manual_seed(self.seed * 1_000_003 + self.updates)
        if self.critic is not None:
            for index in self._minibatches(batch, self.config.critic_minibatch, shuffle):
                self._critic_step(batch, values, returns, index, samples, metrics)
        if self.updates >= self.config.critic_warmup:
            for index in self._minibatches(batch, self.config.policy_minibatch, shuffle):
                if tripped := self._policy_step(batch, proximal, advantages, index, samples, metrics):
                    metrics[tripped].append(1.0)
                    break
        self.bring()
        self.updates += 1
        return _summary(metrics, batch, advantages, returns)

    def bring(self) -> None:
        """Bring what was trained into `policy`."""
        bring(self.trained, self.policy, self.team.whole)

    def _proximal(self, batch: Columns) -> Tensor:
        if self.config.behaviour_cap is None:
            return batch.behaviour
        proximal = self.team.sum(self._logprobs(batch, self.team.deal)[0])
        self._check_gap(float(reduce((proximal - batch.behaviour).abs(), batch.mask, "token_mean")))
        return proximal

    def _check_gap(self, gap: float) -> None:
        """Raises: TrainingDiverged when sampler and learner are not the same policy."""
        if not gap <= self.config.max_gap:
            raise TrainingDiverged(
                self.steps["policy"],
                f"behaviour and learner differ by {gap:.3g} nats a token (limit {self.config.max_gap})",
            )

    def _logprobs(self, batch: Columns, deal: Deal, *, entropy: Entropy = "none") -> tuple[Tensor, Tensor]:
        with self.team.precision(batch.ids.device, bf16=self.config.bf16):
            return policy_logprobs(
                self.scorer,
                batch,
                temperature=self.config.temperature,
                row_tokens=self.config.row_tokens,
                entropy=entropy,
                deal=deal,
            )

    def _values(self, batch: Columns, deal: Deal) -> Tensor:
        assert self.critic is not None
        with self.team.precision(batch.ids.device, bf16=self.config.bf16):
            return critic_values(self.critic, batch, row_tokens=self.config.row_tokens, deal=deal)

    def _old_values(self, batch: Columns) -> Tensor:
        if self.critic is None:
            return torch.zeros_like(batch.mask)
        return self.team.sum(self._values(batch, self.team.deal))

    def _advantages(self, batch: Columns, values: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages, negative ones weighted, and what the critic is to learn."""
        returns = torch.zeros_like(values)
        match self.config.advantage:
            case "gae":
                rewards = place_rewards(batch.rewards, batch.mask)
                advantages, returns = gae(rewards, values, batch.mask, gamma=self.config.gamma, lam=self.config.lam)
            case "grpo":
                advantages = grpo(batch.rewards, batch.groups, batch.mask)
            case "rloo":
                advantages = rloo(batch.rewards, batch.groups, batch.mask)
        return torch.where(advantages < 0, advantages * self.config.negative_weight, advantages), returns

    def _minibatches(self, batch: Columns, size: int, shuffle: torch.Generator) -> Iterator[Tensor]:
        for _ in range(self.config.epochs):
            yield from torch.randperm(len(batch.lengths), generator=shuffle).split(size)

    def _policy_step(
        self,
        batch: Columns,
        proximal: Tensor,
        advantages: Tensor,
        index: Tensor,
        samples: Sequence[Sample],
        metrics: dict[str, list[float]],
    ) -> str:
        """One optimiser step. Returns: the tripwire that it passed, empty when none."""
        measured: dict[str, list[float]] = defaultdict(list)
        entropy: Entropy = "gradient" if self.config.entropy_coef else "value"
        for part, share, deal in self._parts(batch, index):
            columns = batch.rows(part)
            width = columns.mask.shape[1]
            current, entropies = self._logprobs(columns, deal, entropy=entropy)
            result = policy_loss(
                current,
                proximal[part, :width],
                columns.behaviour,
                advantages[part, :width],
                columns.mask,
                clip_low=self.config.clip_low,
                clip_high=self.config.clip_high,
                behaviour_cap=self.config.behaviour_cap,
                reduction=self.config.reduction,
            )
            spread = reduce(entropies, columns.mask, self.config.reduction)
            ((result.loss - self.config.entropy_coef * spread) * share).backward()
            if share:
                measured["kl"].append(share * float(result.approx_kl))
                for name, value in {"policy_loss": result.loss, "entropy": spread, **result.diagnostics()}.items():
                    measured[name].append(float(value.detach()))
        together = dict(self.team.collect(measured))
        kl = sum(together.pop("kl", ()))
        if self.config.behaviour_cap is None:
            gaps = list(together.pop("behaviour_gap", ()))
            if gaps and "behaviour_gap" not in metrics:  # the weights are still those that the engines serve
                self._check_gap(sum(gaps) / len(gaps))
                metrics["behaviour_gap"] = gaps
        self._step(self.scorer, self.policy_optimiser, "policy", index, samples, metrics)
        _extend(metrics, together)
        if kl > self.config.max_kl:
            return "kl_tripped"
        return "ratio_tripped" if max(together.get("ratio_max", (0.0,))) > self.config.max_ratio else ""

    def _critic_step(
        self,
        batch: Columns,
        values: Tensor,
        returns: Tensor,
        index: Tensor,
        samples: Sequence[Sample],
        metrics: dict[str, list[float]],
    ) -> None:
        assert self.critic is not None
        assert self.critic_optimiser is not None
        measured: dict[str, list[float]] = defaultdict(list)
        for part, share, deal in self._parts(batch, index):
            columns = batch.rows(part)
            width = columns.mask.shape[1]
            result = value_loss(
                self._values(columns, deal),
                values[part, :width],
                returns[part, :width],
                columns.mask,
                clip=self.config.value_clip,
                reduction=self.config.reduction,
            )
            (result.loss * share).backward()
            if share:
                measured["value_loss"].append(float(result.loss.detach()))
                measured["value_clipfrac"].append(float(result.clipfrac))
                measured["explained_variance"].append(float(result.explained_variance))
        self._step(self.critic, self.critic_optimiser, "critic", index, samples, metrics)
        _extend(metrics, self.team.collect(measured))

    def _parts(self, batch: Columns, index: Tensor) -> Iterator[tuple[Tensor, float, Deal]]:
        """This process's parts of a mini-batch, each one's share of its mean, and how its rows are dealt.

        The parts are those of one process, taken in turns. Whoever has none left takes one that counts for nothing.
        """
        parts = list(_micro(batch, index, self.config.micro_batch, self.config.reduction))
        for start in range(0, len(parts), self.team.size):
            turn = parts[start : start + self.team.size]
            part, share = turn[self.team.rank] if self.team.rank < len(turn) else (turn[0][0], 0.0)
            count = max(_row_count(batch, one, self.config.row_tokens) for one, _ in turn)
            yield part, share, partial(self.team.fill, count=count, device=batch.ids.device)

    def _step(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        name: Literal["policy", "critic"],
        index: Tensor,
        samples: Sequence[Sample],
        metrics: dict[str, list[float]],
    ) -> None:
        norm = clip(model, self.config.grad_clip, self.team)
        metrics[f"{name}_grad_norm"].append(norm)
        if math.isfinite(norm):
            rise = min(1.0, (self.steps[name] + 1) / max(1, self.config.warmup_steps))
            rate = self._policy_lr() if name == "policy" else self.config.critic_lr
            for group in optimiser.param_groups:
                group["lr"] = rate * rise
            optimiser.step()
            self.skips[name] = 0
        else:
            self.skips[name] += 1
            metrics["skipped_steps"].append(1.0)
            self._evidence(
                f"{name} gradient is not finite at step {self.steps[name]}", [samples[i] for i in index.tolist()]
            )
            if self.skips[name] >= self.config.max_skips:
                raise TrainingDiverged(self.steps[name], f"{self.skips[name]} non-finite {name} steps in a row")
        optimiser.zero_grad(set_to_none=True)
        self.steps[name] += 1

    def _policy_lr(self) -> float:
        whole = self.config.policy_anneal
        return self.config.policy_lr * (1.0 if whole is None else max(0.0, 1.0 - self.updates / whole))


def adamw(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with decay on matrices only, as is usual for transformers."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)


def clip(model: nn.Module, most: float, team: Team) -> float:
    """Clip the gradient's norm. Returns: what it was."""
    return float(team.whole(nn.utils.clip_grad_norm_(model.parameters(), most)))


def _adapted_critic(critic: Critic, lora: LoRAConfig | None, seed: int) -> Critic:
    """The critic with adapters in its backbone; its head is trained whole."""
    if lora is not None:
        critic.model = adapted(critic.model, lora, seed=seed)
    return critic


def _row_count(batch: Columns, part: Tensor, row_tokens: int) -> int:
    """How many rows of a part hold a trainable token."""
    trainable = batch.mask[part].any(dim=1).tolist()
    rows = plan(batch.lengths[part].tolist(), row_tokens=row_tokens)
    return sum(any(trainable[i] for i in members) for members in rows)


def _extend(metrics: dict[str, list[float]], more: Parts) -> None:
    for name, values in more.items():
        metrics[name].extend(values)


def _micro(batch: Columns, index: Tensor, size: int, reduction: Reduction) -> Iterator[tuple[Tensor, float]]:
    """Parts of a mini-batch and each one's share of the mini-batch's mean, so that the summed gradients equal the
    whole's."""
    weight = batch.mask.sum(dim=1) if reduction == "token_mean" else (batch.mask.sum(dim=1) > 0).float()
    total = float(weight[index].sum())
    for part in index.split(size):
        share = float(weight[part].sum()) / total if total else 0.0
        if share:
            yield part, share


def _summary(metrics: dict[str, list[float]], batch: Columns, advantages: Tensor, returns: Tensor) -> Metrics:
    counted = {"skipped_steps", "kl_tripped", "ratio_tripped"}
    summary = {
        name: sum(v) if name in counted else max(v) if name == "ratio_max" else sum(v) / len(v)
        for name, v in metrics.items()
    }
    keep = batch.mask.bool()
    summary |= {
        "reward": float(batch.rewards.mean()),
        "trained_tokens": float(batch.mask.sum()),
        "episodes": float(len(batch.lengths)),
        "advantage_std": float(advantages[keep].std(correction=0)) if keep.any() else 0.0,
        "return_mean": float(returns[keep].mean()) if keep.any() else 0.0,
    }
    return summary
