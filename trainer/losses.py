"""The losses of PPO as pure functions over right-padded batches: `B` sequences of `T` tokens, `mask` 1 at trainable
tokens.

Names follow Schulman et al. 2017 (arXiv 1707.06347) and, for the decoupled objective, Hilton et al. 2022 (arXiv
2110.00641) as used by AReaL (arXiv 2505.24298): *behaviour* is the policy that sampled a token, *proximal* the one
the ratio is clipped against, *current* the one being trained.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 1 << 26
"""Logits in work at once: 256 MiB in float32."""

Reduction = Literal["sequence_mean", "token_mean"]


def reduce(per_token: Tensor, mask: Tensor, reduction: Reduction = "sequence_mean") -> Tensor:
    """Average a per-token quantity over trainable tokens.

    sequence_mean: mean over each sequence's tokens, then over sequences that have any (the papers' recipe).
    token_mean: mean over all tokens of the batch.

    Args:
        per_token: [B, T]; mask: [B, T].

    Returns:
        A scalar; 0 when nothing is trainable.
    """
    per_token = torch.where(mask.bool(), per_token, 0.0)
    if reduction == "token_mean":
        return per_token.sum() / mask.sum().clamp(min=1)
    lengths = mask.sum(dim=1)
    means = per_token.sum(dim=1) / lengths.clamp(min=1)
    return means.sum() / (lengths > 0).sum().clamp(min=1)


class PolicyLoss(NamedTuple):
    """The loss (a scalar with gradient) and its diagnostics (scalars without)."""

    loss: Tensor
    approx_kl: Tensor
    """Mean of `exp(d) - 1 - d`, d = current - proximal (the k3 estimator): never negative."""
    clipfrac: Tensor
    ratio_max: Tensor
    behaviour_weight: Tensor
    """Mean of exp(proximal - behaviour) before truncation."""
    behaviour_gap: Tensor
    """Mean |proximal - behaviour| in nats; where these are one and the same (no `behaviour_cap`), of |current -
    behaviour|, which before the first step of an update is what sampler and learner differ by."""

    def diagnostics(self) -> dict[str, Tensor]:
        """All but the loss, by name."""
        return {name: value for name, value in self._asdict().items() if name != "loss"}


def policy_loss(
    current: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    behaviour_cap: float | None = None,
    reduction: Reduction = "sequence_mean",
) -> PolicyLoss:
    """Clipped surrogate, decoupled from the behaviour policy.

    L = -E[ w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) ],  r = exp(current - proximal), w = min(exp(proximal -
    behaviour), behaviour_cap), a constant. With `behaviour_cap` None, w = 1: textbook PPO, where proximal must be the
    sampling policy itself.

    Args:
        current, proximal, behaviour: [B, T] log-probabilities of the sampled tokens, all with the sampler's
        temperature.
        advantages: [B, T]; mask: [B, T].
    """
    keep = mask.bool()
    log_ratio = torch.where(keep, current - proximal, 0.0)
    ratio = log_ratio.exp()
    gap = torch.where(keep, proximal - behaviour, 0.0).detach()
    weight = gap.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    weighted = surrogate if behaviour_cap is None else weight.clamp(max=behaviour_cap) * surrogate
    loss = -reduce(weighted, mask, reduction)
    with torch.no_grad():
        clipped = ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))
        return PolicyLoss(
            loss=loss,
            approx_kl=reduce(ratio - 1 - log_ratio, mask, "token_mean"),
            clipfrac=reduce(clipped.float(), mask, "token_mean"),
            ratio_max=ratio.max(),
            behaviour_weight=reduce(weight, mask, "token_mean"),
            behaviour_gap=reduce((log_ratio if behaviour_cap is None else gap).abs(), mask, "token_mean"),
        )


class ValueLoss(NamedTuple):
    """The loss (a scalar with gradient) and its diagnostics (scalars without)."""

    loss: Tensor
    clipfrac: Tensor
    explained_variance: Tensor
    """1 - Var(returns - values) / Var(returns) over trainable tokens; 0 when the returns hardly vary."""


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None = 0.2,
    reduction: Reduction = "sequence_mean",
) -> ValueLoss:
    """Half squared error of the critic, clipped around its estimate at rollout as in PPO's reference implementation.

    L = 0.5 E[ max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) ].

    Args:
        values, old_values, returns, mask: [B, T] each. `clip` None: plain squared error.
    """
    error = (values - returns).pow(2)
    clipped_error = error
    if clip is not None:
        clipped_error = (old_values + (values - old_values).clamp(-clip, clip) - returns).pow(2)
    loss = 0.5 * reduce(torch.maximum(error, clipped_error), mask, reduction)
    with torch.no_grad():
        keep = mask.bool()
        spread = returns[keep].var(correction=0) if keep.any() else returns.new_zeros(())
        residual = (returns - values)[keep].var(correction=0) if keep.any() else spread
        explained = torch.where(spread > 1e-6, 1 - residual / spread.clamp(min=1e-6), torch.zeros_like(spread))
        return ValueLoss(loss, reduce((clipped_error > error).float(), mask, "token_mean"), explained)


Entropy = Literal["none", "value", "gradient"]
"""Whether entropies are computed, and whether gradient flows through them: that doubles the backward pass's work."""


def token_logprobs(
    logits: Tensor, targets: Tensor, *, temperature: float = 1.0, entropy: Entropy = "none"
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets` under `logits / temperature`.

    Args:
        logits: [N, V] at the positions that matter only; targets: [N] token ids.

    Returns:
        log-probabilities [N] (float32 or wider, with gradient), entropies [N] (zeros when not asked for).
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    normaliser = scaled.logsumexp(dim=-1)
    logprobs = scaled.gather(-1, targets[:, None]).squeeze(-1) - normaliser
    if entropy == "none":
        return logprobs, torch.zeros_like(logprobs)
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return logprobs, normaliser - (scaled.softmax(dim=-1) * scaled).sum(dim=-1)


def head_logprobs(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: Entropy = "none",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs(head(hidden), targets)` without ever holding the logits of more than one chunk of tokens.

    Nothing as wide as the vocabulary is kept for the backward pass: a chunk's logits are computed again there.

    Args:
        head: the output layer; hidden: [N, H]; targets: [N].
        chunk: tokens at once; None: as many as make `CHUNK_LOGITS` logits.
    """

    def score(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(head(part), wanted, temperature=temperature, entropy=entropy)

    step = chunk or max(1, CHUNK_LOGITS // head.out_features)
    spans = [slice(start, start + step) for start in range(0, max(1, len(targets)), step)]
    parts = [
        checkpoint(score, hidden[span], targets[span], use_reentrant=False, preserve_rng_state=False) for span in spans
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
