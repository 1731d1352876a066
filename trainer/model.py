"""Policy and critic over Hugging Face causal language models.

Both are modules with one `forward`, so that weights spread over devices are gathered around it: packed rows in, one
number per trainable token out, which `policy_logprobs` and `critic_values` bring into the `[B, T]` layout of the
losses. The critic is a second full copy of the policy with a scalar head, as in the papers' recipe; it estimates
the value of the state *before* a token, so neither it nor the log-probability of token t ever sees token t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.batch import Columns, Packed, pack
from trainer.losses import Entropy, head_logprobs, token_logprobs

Row = tuple[Packed, Tensor]
"""A packed row and the places [N] in it that are scored."""
Deal = Callable[[list[Row]], list[Row]]
"""Which of a batch's rows are scored in this process."""


def load_model(directory: Path, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A causal language model from a Hugging Face directory; nothing is fetched.

    Raises: OSError or ValueError when it is incomplete, and whatever else transformers raises.
    """
    from transformers import AutoModelForCausalLM

    _hide_progress()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    model: nn.Module = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):  # transformers would begin with random ones
        raise ValueError(f"tensors are missing: {', '.join(missing[:3])}")
    return model


def recompute(model: nn.Module) -> nn.Module:
    """Keep only each layer's input for the backward pass, which computes the rest again (gradient checkpointing)."""
    # transformers 5.2x renamed the method and warns about the old name
    name = "activation_checkpointing_enable"
    enable: Any = getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")
    enable({"use_reentrant": False})
    model.disable_input_require_grads()  # type: ignore[operator] # only the other kind needs that hook, which cannot be sent
    return model.train()


def small_llama(
    vocabulary: int,
    *,
    hidden: int = 128,
    layers: int = 3,
    context: int = 1024,
    close_id: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """A Llama of about one million parameters with random weights: learns on two CPU cores, loads in SGLang as it
    is. `close_id` is the token that ends a turn."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 32),
        num_key_value_heads=max(1, hidden // 32),
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=close_id,
        # the usual 0.02 is for wide models: at this width attention would hardly tell one token from another at first
        initializer_range=hidden**-0.5,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


class Scorer(nn.Module):
    """A causal language model as the losses see it: log-probabilities of chosen tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: dict[str, Any], at: Tensor, *, temperature: float = 1.0, entropy: Entropy = "none"
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] of the tokens at the places `at` [N] of one packed row."""
        hidden = backbone(self.model)(**inputs).last_hidden_state[0]
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        return head_logprobs(head, hidden[at - 1], inputs["input_ids"][0][at], temperature=temperature, entropy=entropy)


class Critic(nn.Module):
    """A value head on its own copy of the backbone. Starts at zero, so that the first advantages are the rewards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        hidden: int = model.config.hidden_size  # type: ignore[assignment,union-attr]
        self.head = nn.Linear(hidden, 1, device=next(model.parameters()).device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: dict[str, Any], at: Tensor) -> Tensor:
        """The values [N] before the tokens at the places `at` [N] of one packed row."""
        hidden: Tensor = backbone(self.model)(**inputs).last_hidden_state[0]
        values: Tensor = self.head(hidden[at - 1]).squeeze(-1)
        return values.float()


def backbone(model: nn.Module) -> Any:
    """The model without its output layer."""
    return model.get_submodule(str(model.base_model_prefix))


def packed_inputs(row: Packed) -> dict[str, Any]:
    """Arguments of a forward pass over one packed row."""
    return {"input_ids": row.ids, "position_ids": row.positions, "attention_mask": row.attention(), "use_cache": False}


def policy_logprobs(
    scorer: nn.Module,
    batch: Columns,
    *,
    temperature: float,
    row_tokens: int,
    entropy: Entropy = "none",
    deal: Deal = list,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the trainable tokens under the model.

    Logits are made at positions that predict a trainable token and nowhere else.

    Returns: log-probabilities and entropies (zeros unless asked for), [B, T] each, zero at untrainable tokens and in
    rows that are not dealt here. Log-probabilities carry gradient when the context does.
    """
    logprobs = torch.zeros(batch.mask.numel(), device=batch.ids.device)
    entropies = torch.zeros_like(logprobs)
    for row, at in deal(list(trainable_rows(batch.ids, batch.lengths, batch.mask, row_tokens=row_tokens))):
        got, spread = scorer(packed_inputs(row), at, temperature=temperature, entropy=entropy)
        logprobs = logprobs.index_put((row.source[0][at],), got)
        if entropy != "none":
            entropies = entropies.index_put((row.source[0][at],), spread)
    return logprobs.view_as(batch.mask), entropies.view_as(batch.mask)


def critic_values(critic: nn.Module, batch: Columns, *, row_tokens: int, deal: Deal = list) -> Tensor:
    """The critic's estimate before each trainable token, [B, T], zero at untrainable tokens and in rows that are not
    dealt here."""
    values = torch.zeros(batch.mask.numel(), device=batch.ids.device)
    for row, at in deal(list(trainable_rows(batch.ids, batch.lengths, batch.mask, row_tokens=row_tokens))):
        values = values.index_put((row.source[0][at],), critic(packed_inputs(row), at))
    return values.view_as(batch.mask)


def trainable_rows(ids: Tensor, lengths: Tensor, weights: Tensor, *, row_tokens: int) -> Iterator[Row]:
    """Packed rows with the places of their trainable tokens; rows without any are left out.

    Args:
        ids: [B, T]; lengths: [B]; weights: [B, T], not zero at trainable tokens.
    """
    flat = weights.reshape(-1)
    for row in pack(ids, lengths, row_tokens=row_tokens):
        at = flat[row.source[0]].nonzero().squeeze(-1)
        if len(at):
            yield row, at


@torch.no_grad()
def ids_logprobs(model: nn.Module, ids: Sequence[int]) -> list[float]:
    """Log-probabilities of `ids[1:]`, each after the ids before it, at temperature 1."""
    device = next(model.parameters()).device
    whole = torch.tensor([list(ids)], device=device)
    got, _ = token_logprobs(model(input_ids=whole, use_cache=False).logits[0, :-1], whole[0, 1:])
    return [float(value) for value in got]


def save_model(model: nn.Module, directory: Path) -> None:
    """Write a Hugging Face directory (safetensors, float32) that transformers and SGLang load."""
    _hide_progress()
    state = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=state, safe_serialization=True)  # type: ignore[operator]


def _hide_progress() -> None:
    """transformers would draw a bar on standard error at each hand-over and each load."""
    from transformers.utils import logging

    logging.disable_progress_bar()
