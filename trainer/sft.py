"""Supervised fine-tuning on trajectories: every assistant token is a target, weighted by its turn.

The defaults are TermiGen's: AdamW at 5e-6, cosine to zero, warm-up over a tenth of the steps, no weight decay,
batches of 64, 5 epochs, sequences of 20,000 tokens. Injected mistakes carry loss weight 0 in the trajectory and are
seen but not imitated; recoveries are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor, nn

from runtime.trajectory import Trajectory
from trainer.batch import pack, pad
from trainer.losses import token_logprobs
from trainer.model import backbone, packed_inputs
from trainer.sample import Example
from trainer.tokens import Encoder


class SFTConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number of the fine-tuning."""

    learning_rate: float = 5e-6
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    batch: int = 64
    epochs: int = 5
    max_tokens: int = 20_000
    """Longer examples are cut at the end."""
    row_tokens: int = 20_000
    bf16: bool = False


def example_of(trajectory: Trajectory, encoder: Encoder) -> Example:
    """Token ids and target weights of a trajectory, framed as the policy will be prompted."""
    ids, weights = list(encoder.begin()), [0.0] * len(encoder.begin())

    def add(tokens: Sequence[int], weight: float) -> None:
        ids.extend(tokens)
        weights.extend([weight] * len(tokens))

    for message in trajectory.opening:
        add(encoder.message(message.role, message.content), 0.0)
    for turn in trajectory.turns:
        add(encoder.header("assistant"), 0.0)
        add((*encoder.text(turn.text), *encoder.stop_ids[:1]), turn.loss_weight)
        add(encoder.footer(closed=True), 0.0)
        if turn.observation is not None:
            add(encoder.message("user", turn.observation), 0.0)
    return Example(id=trajectory.trajectory_id, ids=ids, weights=weights)


def weighted_loss(
    model: nn.Module, ids: Tensor, lengths: Tensor, weights: Tensor, *, row_tokens: int
) -> tuple[Tensor, Tensor]:
    """Summed weighted negative log-likelihood and the sum of the weights.

    Args:
        ids: [B, T]; lengths: [B]; weights: [B, T], the first column is ignored: nothing predicts it.

    Returns:
        Two scalars; the loss of the batch is their quotient.
    """
    flat = weights.clone()
    flat[:, 0] = 0
    flat = flat.reshape(-1)
    head = model.get_output_embeddings()  # type: ignore[operator]
    total = torch.zeros((), device=ids.device)
    for row in pack(ids, lengths, row_tokens=row_tokens):
        weight = flat[row.source[0]]
        at = weight.nonzero().squeeze(-1)
        if len(at):
            hidden = backbone(model)(**packed_inputs(row)).last_hidden_state[0]
            logprobs, _ = token_logprobs(head(hidden[at - 1]), row.ids[0][at])
            total = total - (logprobs * weight[at]).sum()
    return total, flat.sum()


def fine_tune(
    model: nn.Module,
    examples: Sequence[Example],
    config: SFTConfig,
    *,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float]], bool | None] | None = None,
) -> dict[str, float]:
    """Train in place. `on_step(step, metrics)` may return True to stop early.

    Deterministic in (weights, examples, seed).

    Returns: The last step's metrics.
    """
    if not examples:
        raise ValueError("there are no examples to train on")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    shuffle = torch.Generator().manual_seed(seed)
    batches = [
        index.tolist()
        for _ in range(config.epochs)
        for index in torch.randperm(len(examples), generator=shuffle).split(config.batch)
    ]
    metrics: dict[str, float] = {}
    for step, members in enumerate(batches):
        metrics = _step(model, optimiser, [examples[i] for i in members], config, step, len(batches))
        if on_step is not None and on_step(step, metrics):
            break
    return metrics


def _step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    members: Sequence[Example],
    config: SFTConfig,
    step: int,
    steps: int,
) -> dict[str, float]:
    ids = pad([e.ids[: config.max_tokens] for e in members], torch.int64)
    weights = pad([e.weights[: config.max_tokens] for e in members], torch.float32)
    lengths = torch.tensor([min(len(e.ids), config.max_tokens) for e in members])
    rate = config.learning_rate * schedule(step, steps, config.warmup_ratio)
    for group in optimiser.param_groups:
        group["lr"] = rate
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=config.bf16):
        total, weight = weighted_loss(model, ids, lengths, weights, row_tokens=config.row_tokens)
    loss = total / weight.clamp(min=1e-6)
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip))
    if math.isfinite(norm):
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return {"loss": float(loss.detach()), "grad_norm": norm, "learning_rate": rate, "tokens": float(lengths.sum())}


def schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """Linear warm-up, then cosine to zero: the factor on the learning rate at a step of `steps`."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
