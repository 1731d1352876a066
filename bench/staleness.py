"""What staleness costs, and what the decoupled objective gives back: learning curves of the real PPO at three settings.

    fresh        bound 0: every batch is sampled from the weights that learn from it
    decoupled    every batch is `lag` updates old, clipped against the learner's weights, weighted by a truncated ratio
    coupled      the same batches, clipped against the weights that sampled them: what PPO without decoupling does

The problem is one turn without a sandbox: the prompt names a digit, and the answer should count up from it; the reward
is the share of right tokens. The policy is a small Llama from random weights; the learner is `trainer.ppo.Learner`. The
age of a batch is exact: it is sampled from the weights of `lag` updates ago (of all there are, at the beginning).
"""

from __future__ import annotations

import copy
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor, nn

from trainer.evaluate import bootstrap
from trainer.model import small_llama
from trainer.ppo import Learner, PPOConfig, TrainingDiverged
from trainer.sample import Sample

SAY = partial(print, flush=True)
DIGITS, LENGTH = 6, 4
_OPEN, _CLOSE = DIGITS, DIGITS + 1
_PROMPT = 3
_GROUP, _MINIBATCH, _MEASURED = 16, 24, 192
_ENTROPY = 0.01
"""So that no digit is given up early: what is compared is staleness, not luck."""
_BATCH = DIGITS * _GROUP
ARMS = ("fresh", "decoupled", "coupled")


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward of the policy's own draws after each update."""

    rewards: list[float]
    gap: float
    """Nats a token between the weights that sampled and those that learned, on average; 0 where it is not measured."""

    @property
    def mean(self) -> float:
        """Over the whole run: how fast it learned."""
        return statistics.fmean(self.rewards)

    @property
    def final(self) -> float:
        """Over the last tenth."""
        return statistics.fmean(self.rewards[-max(1, len(self.rewards) // 10) :])


def measure(
    *, lag: int, updates: int, learning_rate: float, seeds: Sequence[int], say: Callable[[str], None] = SAY
) -> dict[str, list[Curve]]:
    """Train each arm at each seed and print what came of it."""
    say(f"{updates} updates of {_BATCH} episodes, learning rate {learning_rate:g}, lag {lag}, {len(seeds)} seeds")
    say("arm          mean reward (95 % over seeds)   final reward (95 %)    gap nats/token")
    found = {}
    for arm in ARMS:
        curves = [train(arm, lag=lag, updates=updates, learning_rate=learning_rate, seed=seed) for seed in seeds]
        found[arm] = curves
        gap = statistics.fmean(curve.gap for curve in curves)
        say(f"{arm:10} {_shown([c.mean for c in curves])} {_shown([c.final for c in curves])} {gap:12.3f}")
    for other in ARMS[1:]:
        pairs = zip(found["fresh"], found[other], strict=True)
        say(f"{other} - fresh, mean reward, paired by seed: {_shown([b.mean - a.mean for a, b in pairs])}")
    return found


def train(arm: str, *, lag: int, updates: int, learning_rate: float, seed: int) -> Curve:
    """One learning curve. Deterministic in its arguments."""
    torch.set_num_threads(1)  # the model is so small that a second thread would only spin
    config = PPOConfig(
        advantage="rloo",
        temperature=1.0,
        policy_lr=learning_rate,
        warmup_steps=0,
        entropy_coef=_ENTROPY,
        policy_minibatch=_MINIBATCH,
        micro_batch=64,
        row_tokens=_BATCH * (_PROMPT + LENGTH),
        behaviour_cap=5.0 if arm == "decoupled" else None,
        max_gap=100.0,
        max_kl=100.0,
    )
    learner = Learner(small_llama(DIGITS + 2, hidden=32, layers=1, seed=seed), None, config, seed=seed)
    draws = torch.Generator().manual_seed(seed)
    old: deque[nn.Module] = deque(maxlen=1 if arm == "fresh" else lag + 1)
    rewards: list[float] = []
    gaps: list[float] = []
    for update in range(updates):
        old.append(copy.deepcopy(learner.policy))
        samples = _episodes(old[0], update, draws)
        try:
            metrics = learner.update(samples)
        except TrainingDiverged:
            rewards += [0.0] * (updates - update)
            break
        gaps.append(metrics["behaviour_gap"])
        rewards.append(_reward_of(learner.policy, draws))
    return Curve(rewards=rewards, gap=statistics.fmean(gaps) if gaps else 0.0)


def _episodes(policy: nn.Module, update: int, draws: torch.Generator) -> list[Sample]:
    """A batch: every digit once, each a group."""
    starts = torch.arange(DIGITS).repeat_interleave(_GROUP)
    ids, logprobs = _draw(policy, starts, draws)
    return [
        Sample(
            id=f"{update}/{number}",
            group=f"{update}/{number // _GROUP}",
            ids=row.tolist(),
            mask=[0] * _PROMPT + [1] * LENGTH,
            logprobs=[0.0] * _PROMPT + said.tolist(),
            versions=[-1] * _PROMPT + [update] * LENGTH,
            reward=float(reward),
        )
        for number, (row, said, reward) in enumerate(zip(ids, logprobs, _rewards(ids), strict=True))
    ]


@torch.no_grad()
def _draw(policy: nn.Module, starts: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """[B, prompt + answer] ids and [B, answer] log-probabilities, sampled at temperature 1."""
    ends = torch.full_like(starts, _OPEN), torch.full_like(starts, _CLOSE)
    ids = torch.stack([ends[0], starts, ends[1]], dim=1)
    said = []
    for _ in range(LENGTH):
        logprobs = policy(input_ids=ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(logprobs.exp(), 1, generator=draws)
        said.append(logprobs.gather(1, token))
        ids = torch.cat([ids, token], dim=1)
    return ids, torch.cat(said, dim=1)


def _rewards(ids: Tensor) -> Tensor:
    """[B]: the share of tokens that count up from the prompt's digit."""
    wanted = (ids[:, 1:2] + torch.arange(1, LENGTH + 1)) % DIGITS
    return (ids[:, _PROMPT:] == wanted).float().mean(dim=1)


def _reward_of(policy: nn.Module, draws: torch.Generator) -> float:
    ids, _ = _draw(policy, torch.arange(_MEASURED) % DIGITS, draws)
    return float(_rewards(ids).mean())


def _shown(values: Sequence[float]) -> str:
    low, high = bootstrap(values, resamples=2000, seed=0)
    return f"{statistics.fmean(values):8.3f} ({low:6.3f} to {high:6.3f})"
