"""From ragged sequences to tensors: padded columns for the losses, packed rows for the model.

The losses see `[B, T]` right-padded columns, one row a sequence. The model sees packed rows: several sequences end
to end, positions counted anew for each, attention kept inside each by a block-diagonal causal mask, so that no
compute goes into padding. A packed forward gives the same log-probabilities as one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.sample import Sample


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Per-token columns of B sequences, right-padded to T. Column t belongs to token t itself (not to the one it
    predicts).
    """

    ids: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64
    mask: Tensor  # [B, T] float32, 1 at trainable tokens
    behaviour: Tensor  # [B, T] float32
    rewards: Tensor  # [B] float32
    groups: Tensor  # [B] int64

    def rows(self, index: Tensor) -> Columns:
        """The chosen sequences, cut to the longest of them."""
        width = int(self.lengths[index].max())
        return Columns(
            ids=self.ids[index, :width],
            lengths=self.lengths[index],
            mask=self.mask[index, :width],
            behaviour=self.behaviour[index, :width],
            rewards=self.rewards[index],
            groups=self.groups[index],
        )

    def to(self, device: torch.device) -> Columns:
        """The same columns on a device."""
        return Columns(**{name: column.to(device) for name, column in vars(self).items()})


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, fill: float = 0) -> Tensor:
    """[B, T] from ragged rows, T the longest (at least 1)."""
    width = max(1, *map(len, rows))
    out = torch.full((len(rows), width), fill, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


def collate(samples: Sequence[Sample]) -> Columns:
    """Columns of a batch of samples, in their order. The first token of a sequence has no prediction and is never
    trainable.
    """
    group_ids = {name: i for i, name in enumerate(sorted({s.group for s in samples}))}
    mask = pad([s.mask for s in samples], torch.float32)
    mask[:, 0] = 0
    return Columns(
        ids=pad([s.ids for s in samples], torch.int64),
        lengths=torch.tensor([len(s.ids) for s in samples]),
        mask=mask,
        behaviour=pad([s.logprobs for s in samples], torch.float32),
        rewards=torch.tensor([s.reward for s in samples], dtype=torch.float32),
        groups=torch.tensor([group_ids[s.group] for s in samples]),
    )


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Sequences laid end to end in R rows of L tokens."""

    ids: Tensor  # [R, L]
    positions: Tensor  # [R, L], counted anew in each sequence
    segments: Tensor  # [R, L], number of the sequence, -1 at padding
    source: Tensor  # [R, L] flat index into [B * T] of each token, -1 at padding

    def attention(self) -> Tensor:
        """[R, 1, L, L] bool: may token i see token j. Padding sees itself, so that no row is empty."""
        same = self.segments[:, :, None] == self.segments[:, None, :]
        length = self.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return (same & causal)[:, None]


def plan(lengths: Sequence[int], *, row_tokens: int) -> list[list[int]]:
    """Which sequences share a row of at most `row_tokens` tokens (one longer sequence gets a row of its own):
    first-fit decreasing. Together the rows name every sequence once.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    rows: list[list[int]] = []
    room: list[int] = []
    for i in order:
        for r, free in enumerate(room):
            if lengths[i] <= free:
                rows[r].append(i)
                room[r] -= lengths[i]
                break
        else:
            rows.append([i])
            room.append(row_tokens - lengths[i])
    return rows


def pack(ids: Tensor, lengths: Tensor, *, row_tokens: int) -> list[Packed]:
    """Lay sequences out as `plan` says.

    Args:
        ids: [B, T]; lengths: [B].

    Returns: One `Packed` of a single row each, ordered; together they hold every token once.
    """
    counts = lengths.tolist()
    return [_row(ids, counts, members) for members in plan(counts, row_tokens=row_tokens)]


def _row(ids: Tensor, lengths: Sequence[int], members: Sequence[int]) -> Packed:
    width, device = ids.shape[1], ids.device
    spans = [(i, lengths[i]) for i in members]
    return Packed(
        ids=torch.cat([ids[i, :n] for i, n in spans])[None],
        positions=torch.cat([torch.arange(n, device=device) for _, n in spans])[None],
        segments=torch.cat([torch.full((n,), k, device=device) for k, (_, n) in enumerate(spans)])[None],
        source=torch.cat([i * width + torch.arange(n, device=device) for i, n in spans])[None],
    )
