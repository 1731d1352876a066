"""The key-value cache of a running batch whose sequences come and go at any token.

Sequences are right-aligned, so that the last column is the newest token of each and one forward pass goes on with all
of them, whatever their lengths; what is left of a shorter one is masked. Joining and leaving move cached columns and
compute nothing again.

A model with layers that keep less than everything (sliding windows, recurrent states) is not `movable`: its batch is
computed anew when it changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Rows:
    """Cached sequences of one model, computed from their first token."""

    def __init__(self, model: nn.Module, sequences: Sequence[Sequence[int]]) -> None:
        from transformers import DynamicCache

        self._model = model
        # transformers 5.2x renamed the argument and warns about the old name
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        config: Any = model.config
        self._cache: Any = DynamicCache(config=config)
        width, device = max(map(len, sequences)), next(model.parameters()).device
        ids = torch.zeros(len(sequences), width, dtype=torch.int64, device=device)
        self._attention = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, width - len(sequence) :] = torch.tensor(sequence, device=device)
            self._attention[row, width - len(sequence) :] = 1
        self.logits = self._forward(ids, (self._attention.cumsum(-1) - 1).clamp(min=0))
        """Of the next token of each sequence, [rows, vocabulary]."""

    @property
    def movable(self) -> bool:
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def decode(self, last: Sequence[int]) -> None:
        """Go on with the newest token of each sequence, which is not cached yet."""
        ids = torch.tensor([[token] for token in last], device=self._attention.device)
        self._attention = torch.cat([self._attention, torch.ones_like(ids)], dim=1)
        self.logits = self._forward(ids, self._attention.sum(-1, keepdim=True) - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other sequences, and the columns that none of the rest uses."""
        index = torch.tensor(rows, device=self._attention.device)
        attention = self._attention[index]
        unused = attention.shape[1] - int(attention.sum(-1).max())
        self._attention = attention[:, unused:]
        for layer in self._cache.layers:
            layer.keys, layer.values = (part[index, :, unused:] for part in (layer.keys, layer.values))

    def join(self, other: Rows) -> None:
        """Take the sequences of another cache of the same model in, after the own ones."""
        width = max(self._attention.shape[1], other._attention.shape[1])
        self._attention = torch.cat([_widen(part._attention, width, 1) for part in (self, other)])
        self.logits = torch.cat([self.logits, other.logits])
        for own, new in zip(self._cache.layers, other._cache.layers, strict=True):
            own.keys = torch.cat([_widen(own.keys, width, 2), _widen(new.keys, width, 2)])
            own.values = torch.cat([_widen(own.values, width, 2), _widen(new.values, width, 2)])

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self._model(
            input_ids=ids,
            attention_mask=self._attention,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        logits: Tensor = out.logits[:, -1].float()
        return logits


def _widen(part: Tensor, width: int, dim: int) -> Tensor:
    """Zeros in front, up to `width` along `dim`."""
    shape = list(part.shape)
    shape[dim] = width - shape[dim]
    return torch.cat([part.new_zeros(shape), part], dim=dim)
