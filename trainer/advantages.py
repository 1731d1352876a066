"""Advantages: from rewards and values to what each sampled token is worth.

All functions are pure and work on right-padded batches: `B` sequences of `T` tokens. `mask[b, t]` is 1 where token
`t` was sampled by the policy (trainable) and 0 for prompt, observation and padding. Estimators run on the trainable
subsequence alone: inserting or removing untrainable tokens anywhere changes nothing, and the reward sits on the
last trainable token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def place_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Put each episode's reward on its last trainable token.

    Args:
        rewards: [B], one per sequence.
        mask: [B, T].

    Returns:
        [B, T], zero but for the last trainable token of each sequence. A sequence without trainable tokens stays zero.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask.bool(), positions, -1).amax(dim=1)
    return torch.where((positions == last[:, None]) & (last[:, None] >= 0), rewards[:, None], 0.0)


@torch.no_grad()
def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16) on the trainable subsequence.

    The accumulators are carried across untrainable tokens, so an observation neither decays nor dilutes credit.

    Args:
        rewards: [B, T], read at trainable tokens only (see `place_rewards`).
        values: [B, T], the critic's estimate at each token, read at trainable tokens only.
        mask: [B, T].

    Returns:
        advantages, returns: [B, T] each, zero at untrainable tokens.
    """
    advantages = torch.zeros_like(values)
    next_value = values.new_zeros(values.shape[0])
    next_advantage = torch.zeros_like(next_value)
    for t in range(values.shape[1] - 1, -1, -1):
        trainable = mask[:, t].bool()
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(trainable, advantage, 0.0)
        next_advantage = torch.where(trainable, advantage, next_advantage)
        next_value = torch.where(trainable, values[:, t], next_value)
    returns = torch.where(mask.bool(), advantages + values, 0.0)
    return advantages, returns


@torch.no_grad()
def grpo(rewards: Tensor, groups: Tensor, mask: Tensor, *, scale: bool = True, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages (Shao et al. 2024, arXiv 2402.03300): reward less the group's mean, over its deviation.

    Args:
        rewards: [B]; groups: [B] integer group ids; mask: [B, T].
        scale: divide by the group's standard deviation (off: Dr. GRPO, arXiv 2503.20783).

    Returns:
        [B, T], the same value at every trainable token of a sequence.
    """
    advantage = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        centred = rewards[members] - rewards[members].mean()
        advantage[members] = centred / (centred.pow(2).mean().sqrt() + eps) if scale else centred
    return advantage[:, None] * mask


@torch.no_grad()
def rloo(rewards: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Leave-one-out advantages (Ahmadian et al. 2024, arXiv 2402.14740): reward less the mean of the others.

    A group of one has no baseline and gets advantage 0. Shapes as in `grpo`.
    """
    advantage = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        size = int(members.sum())
        if size > 1:
            r = rewards[members]
            advantage[members] = r - (r.sum() - r) / (size - 1)
    return advantage[:, None] * mask
