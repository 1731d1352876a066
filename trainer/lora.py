"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank * B A, of which A and B alone are trained.

Forty lines of ours and no library: the trainer runs where nothing but torch, transformers, numpy, safetensors and
msgspec is installed, and an adapted layer keeps the name of its weight, so that merged weights are read off under the
names that engines and exports know.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.errors import UserError

Whole = Callable[[Tensor], Tensor]


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which layers are adapted, and how."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of linear layers, as they end."""


class AdaptedLinear(nn.Linear):
    """A linear layer whose own weight is frozen, with an adapter beside it. Starts as the layer that it was."""

    def __init__(self, layer: nn.Linear, config: LoRAConfig, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = config.alpha / config.rank
        bound = 1 / math.sqrt(self.in_features)
        down = torch.empty(config.rank, self.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(down.to(layer.weight))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(self.out_features, config.rank))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        low = functional.linear(functional.linear(input, self.lora_a), self.lora_b)
        return super().forward(input) + self.scale * low


def adapted(model: nn.Module, config: LoRAConfig, *, seed: int = 0) -> nn.Module:
    """A copy of a model in which only adapters are trainable. Raises: UserError when no layer has a target's name."""
    model = copy.deepcopy(model).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    chosen = [name for name in linear if name.rpartition(".")[2] in config.targets]
    if not chosen:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise UserError(
            "lora.targets", f"{list(config.targets)} are no linear layers of the model", f"Choose from {known}"
        )
    for name in chosen:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, AdaptedLinear(layer, config, generator))
    return model


def merged_weights(model: nn.Module, whole: Whole) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model by the names they have without adapters, each with its adapter merged in.

    Args:
        whole: makes a spread weight whole; called for the same weights in the same order in every process.
    """
    for path, part in model.named_modules():
        for name, weight in part.named_parameters(prefix=path, recurse=False):
            if name.endswith((".lora_a", ".lora_b")):
                continue
            full = whole(weight.detach())
            if isinstance(part, AdaptedLinear) and weight is part.weight:
                full = full + part.scale * whole(part.lora_b.detach()) @ whole(part.lora_a.detach())
            yield name, full


def bring(trained: nn.Module, plain: nn.Module, whole: Whole) -> None:
    """Bring the merged weights of a trained model into a plain one of the same names; nothing is done when they are
    one model, and in a process whose plain model has no weights the weights are gathered all the same."""
    if trained is plain:
        return
    own = dict(plain.named_parameters())
    for name, weight in merged_weights(trained, whole):
        if name in own:
            own[name].data.copy_(weight)
