"""Supervised fine-tuning on trajectories: every assistant token is a target, weighted by its turn.

The defaults are TermiGen's: AdamW at 5e-6, cosine to zero, warm-up over a tenth of the steps, no weight decay,
batches of 64, 5 epochs, sequences of 20,000 tokens. Injected mistakes carry loss weight 0 in the trajectory and are
seen but not imitated; recoveries are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from runtime.trajectory import Trajectory
from trainer.batch import pad
from trainer.checkpoint import STATE, Part, newest, read_tensors, write_checkpoint, write_tensors
from trainer.lora import LoRAConfig, adapted, bring
from trainer.model import Row, Scorer, packed_inputs, trainable_rows
from trainer.parallel import ALONE, Team
from trainer.ppo import TrainingDiverged, clip
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
    max_skips: int = 5
    """Non-finite steps in a row that end the run."""
    checkpoint_every: int = 200
    """Steps."""
    threads: int | None = None
    """Of torch meanwhile, where it is to have more than the process keeps to beside sandboxes."""


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


@dataclass(frozen=True, kw_only=True)
class Targets:
    """A batch of examples, right-padded."""

    ids: Tensor  # [B, T] int64
    lengths: Tensor  # [B]
    weights: Tensor  # [B, T] float32, 0 in the first column: nothing predicts it

    def rows(self, row_tokens: int) -> list[Row]:
        """Packed rows with the places of their targets."""
        return list(trainable_rows(self.ids, self.lengths, self.weights, row_tokens=row_tokens))


def targets_of(examples: Sequence[Example], max_tokens: int, device: torch.device) -> Targets:
    """The batch of some examples, each cut at its end."""
    weights = pad([e.weights[:max_tokens] for e in examples], torch.float32)
    weights[:, 0] = 0
    return Targets(
        ids=pad([e.ids[:max_tokens] for e in examples], torch.int64).to(device),
        lengths=torch.tensor([min(len(e.ids), max_tokens) for e in examples]).to(device),
        weights=weights.to(device),
    )


def row_loss(scorer: nn.Module, targets: Targets, row: Row) -> Tensor:
    """Summed weighted negative log-likelihood of one packed row, a scalar; 0 in a row without targets. The loss of a
    batch is the sum over its rows, divided by the sum of the weights."""
    packed, at = row
    logprobs, _ = scorer(packed_inputs(packed), at)
    loss: Tensor = -(logprobs * targets.weights.reshape(-1)[packed.source[0][at]]).sum()
    return loss


def fine_tune(
    model: nn.Module,
    examples: Sequence[Example],
    config: SFTConfig,
    *,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float]], bool | None] = lambda step, metrics: None,
    team: Team = ALONE,
    lora: LoRAConfig | None = None,
    checkpoints: Path | None = None,
) -> dict[str, float]:
    """Train in place; adapters are merged at the end. `on_step(step, metrics)` may return True to stop early.

    Deterministic in (weights, examples, seed). A team comes to what one process does, to rounding.

    Args:
        checkpoints: Directory for them; training goes on from the newest whole one there, as if never stopped.

    Returns: The last step's metrics. Raises: TrainingDiverged, CheckpointInvalid, OSError.
    """
    if not examples:
        raise ValueError("there are no examples to train on")
    team.tell("fine_tune", examples=examples, config=config, seed=seed, checkpoints=checkpoints)
    trained = model if lora is None else adapted(model, lora, seed=seed)
    scorer = team.spread(Scorer(trained), bf16=config.bf16)
    optimiser = torch.optim.AdamW(
        [weight for weight in scorer.parameters() if weight.requires_grad],
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )
    shuffle = torch.Generator().manual_seed(seed)
    batches = [
        index.tolist()
        for _ in range(config.epochs)
        for index in torch.randperm(len(examples), generator=shuffle).split(config.batch)
    ]
    metrics: dict[str, float] = {}
    skips = 0
    saves = _Saves(checkpoints, [(scorer.get_submodule("model"), optimiser, "policy")], team)
    begin = saves.restore()
    with _threads(config.threads):
        for step, members in enumerate(batches[begin:], begin):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * schedule(step, len(batches), config.warmup_ratio)
            metrics = _step(scorer, optimiser, [examples[i] for i in members], config, team)
            skips = skips + 1 if metrics["skipped_steps"] else 0
            if skips == config.max_skips:
                last = ", ".join(examples[i].id for i in members)
                raise TrainingDiverged(step, f"{skips} non-finite steps in a row, the last on {last}")
            stopped = team.agree(bool(on_step(step, metrics)))
            if stopped or (step + 1) % config.checkpoint_every == 0:
                saves.save(step + 1)
            if stopped:
                break
    bring(scorer.get_submodule("model"), model, team.whole)
    return metrics


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """So many threads for what torch computes in this one."""
    usual = torch.get_num_threads()
    torch.set_num_threads(number or usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class _Saves:
    """The checkpoints of a fine-tuning; none without a directory. Every process of a team calls in the same places."""

    def __init__(self, root: Path | None, parts: Sequence[Part], team: Team) -> None:
        self._root, self._parts, self._team = root, parts, team

    def restore(self) -> int:
        """Put everything to where the newest checkpoint has it; returns the steps that were made by then."""
        if self._root is None:
            return 0
        found = self._team.share(newest(self._root) if self._team.rank == 0 else None)
        if found is None:
            return 0
        read_tensors(self._parts, found.directory / STATE, self._team)
        return int(found.version)

    def save(self, step: int) -> None:
        if self._root is None:
            return
        if self._team.rank == 0:
            write_checkpoint(self._root, step, self._fill)
        else:
            write_tensors(self._parts, self._team.share(None), self._team)

    def _fill(self, directory: Path) -> dict[str, Any]:
        write_tensors(self._parts, self._team.share(directory / STATE), self._team)
        return {}


def _step(
    scorer: nn.Module, optimiser: torch.optim.Optimizer, members: Sequence[Example], config: SFTConfig, team: Team
) -> dict[str, float]:
    """One optimiser step, its gradient gathered row by row; one that is not finite is skipped."""
    device = next(scorer.parameters()).device
    targets = targets_of(members, config.max_tokens, device)
    weight = targets.weights.sum().clamp(min=1e-6)
    loss = torch.zeros((), device=device)
    for row in team.deal(targets.rows(config.row_tokens)):
        with team.precision(device, bf16=config.bf16):
            share = row_loss(scorer, targets, row) / weight
        share.backward()
        loss += share.detach()
    norm = clip(scorer, config.grad_clip, team)
    if math.isfinite(norm):
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return {
        "loss": float(team.sum(loss)),
        "grad_norm": norm,
        "learning_rate": optimiser.param_groups[0]["lr"],
        "tokens": float(targets.lengths.sum()),
        "skipped_steps": float(not math.isfinite(norm)),
    }


def schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """Linear warm-up, then cosine to zero: the factor on the learning rate at a step of `steps`."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
