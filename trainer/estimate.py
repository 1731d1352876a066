"""What a recipe needs, counted before anything is started: memory by part, tokens, devices, and what runs where.

The worst case of the recipe's own limits: every row full, every sequence at the context's end. Weights, gradients and
moments are divided by the devices of the learner; what a device needs for the rows that it works on is not. What a
layer keeps for the backward pass was counted in the autograd graph of a Llama (`tests/trainer/test_estimate.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runtime.errors import UserError
from trainer.lora import LoRAConfig
from trainer.losses import CHUNK_LOGITS
from trainer.recipe import Recipe, Shape

GIB = 1 << 30
USABLE = 0.9
"""Of a device's memory: the rest goes to the runtime and to fragments."""
CARDS = (80.0, 141.0)
"""Memory in GB of the devices that a recipe is always counted for, beside its own."""
MOST = 1024
"""Devices tried."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of memory."""

    name: str
    gib: float
    divided: bool
    """Whether it is spread over the devices of its kind; otherwise each has all of it."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one size."""

    gpu_memory_gb: float
    learner_gpus: int | None
    """None: what is not divided is larger than a device."""
    contexts: int
    """Whole contexts that an engine holds beside its weights."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe needs."""

    parameters: int
    trained_parameters: int
    """Of the policy: fewer with adapters."""
    learner: tuple[Part, ...]
    engine: tuple[Part, ...]
    """Of one engine, over its `tensor_parallel` devices."""
    host_gib: float
    """The leader's plain copy of the policy in the memory of its host, and while it starts one of the critic."""
    learner_gpus: int | None
    engine_gpus: int
    cards: tuple[Card, ...]
    episodes_per_update: int
    tokens_per_update: int
    """At most: every episode at the end of its context."""
    tokens_per_task_pass: int
    """At most, for each task in each pass over the tasks."""
    flops_per_update: float
    """Floating-point operations of an update at most, without those of attention."""
    gpu_memory_gb: float
    activations_gib: tuple[float, float]
    """Kept for the backward pass without and with gradient checkpointing."""


def parameters(shape: Shape) -> int:
    """Parameters of a decoder with grouped-query attention, a gated feed-forward layer and two norms a layer."""
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied_embeddings else 2)
    return shape.layers * _layer(shape) + embeddings + shape.hidden


def _layer(shape: Shape) -> int:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate + 2)


def estimate(recipe: Recipe, shape: Shape) -> Estimate:
    """Count a recipe for a model of a shape."""
    count, own = parameters(shape), recipe.hardware.gpu_memory_gb
    tokens = recipe.rollout_agent().context_tokens if recipe.ppo else _sft_tokens(recipe)
    episodes = recipe.batch if recipe.ppo else (recipe.sft.batch if recipe.sft else 0)
    sizes = sorted({own, *CARDS})
    cards = tuple(_card(recipe, shape, count, size) for size in sizes)
    gpus = cards[sizes.index(own)].learner_gpus
    return Estimate(
        parameters=count,
        trained_parameters=_trained(recipe, shape, count),
        learner=tuple(_learner(recipe, shape, count, gpus or MOST)),
        engine=_engine(recipe, shape, count),
        host_gib=0.0 if gpus == 1 else 4 * count * (1 + _has_critic(recipe)) / GIB,
        learner_gpus=gpus,
        engine_gpus=recipe.serve.engines * recipe.serve.tensor_parallel if recipe.ppo else 0,
        cards=cards,
        episodes_per_update=episodes,
        tokens_per_update=episodes * tokens,
        tokens_per_task_pass=recipe.rollout.group_size * tokens if recipe.ppo else tokens,
        flops_per_update=_passes(recipe) * 2.0 * count * episodes * tokens,
        gpu_memory_gb=own,
        activations_gib=(_activations(recipe, shape, again=False) / GIB, _activations(recipe, shape, again=True) / GIB),
    )


def _card(recipe: Recipe, shape: Shape, count: int, gpu_memory_gb: float) -> Card:
    memory = gpu_memory_gb * 1e9 / GIB
    weights, cache = (part.gib for part in _engine(recipe, shape, count))
    room = recipe.serve.tensor_parallel * recipe.serve.memory_fraction * memory - weights
    fits = (n for n in range(1, MOST + 1) if _on_each(_learner(recipe, shape, count, n), n) <= USABLE * memory)
    return Card(
        gpu_memory_gb=gpu_memory_gb,
        learner_gpus=next(fits, None),
        contexts=max(0, int(room / (cache / recipe.serve.max_running))),
    )


def _on_each(parts: Iterator[Part], devices: int) -> float:
    return sum(part.gib / devices if part.divided else part.gib for part in parts)


def _passes(recipe: Recipe) -> float:
    """Forward passes of the policy that an update's work is worth; a backward pass is worth two."""
    step = 4.0 if recipe.train.gradient_checkpointing else 3.0
    if recipe.ppo is None:
        return step
    models = 1 + _has_critic(recipe)
    scoring = (recipe.ppo.behaviour_cap is not None) + (models - 1)
    return models * recipe.ppo.epochs * step + scoring


def _has_critic(recipe: Recipe) -> bool:
    return recipe.ppo is not None and recipe.ppo.advantage == "gae"


def _trained(recipe: Recipe, shape: Shape, count: int) -> int:
    return count if recipe.lora is None else adapter_parameters(recipe.lora, shape)


def adapter_parameters(lora: LoRAConfig, shape: Shape) -> int:
    """Parameters of the adapters of a model, for the usual names of its layers."""
    hidden, inside = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = {"q_proj": hidden + queries, "k_proj": hidden + keys, "v_proj": hidden + keys, "o_proj": hidden + queries}
    sides |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + inside)
    return shape.layers * lora.rank * sum(sides.get(name, 0) for name in lora.targets)


def _learner(recipe: Recipe, shape: Shape, count: int, devices: int) -> Iterator[Part]:
    trained, width = _trained(recipe, shape, count), _width(recipe)
    for name in ("policy", "critic")[: 1 + _has_critic(recipe)]:
        yield _divided(f"{name}: weights, float32", 4 * count)
        yield _divided(f"{name}: gradients, float32", 4 * trained)
        yield _divided(f"{name}: AdamW moments, float32", 8 * trained)
    if devices > 1:
        root = parameters(shape) - shape.layers * _layer(shape)
        yield _each("weights gathered from the others, with their gradients", 2 * width * (2 * _layer(shape) + root))
    else:
        if recipe.lora is not None:
            yield _each("plain copy of the policy with merged adapters", 4 * count)
        if width == 2:
            yield _each("weights for the forward pass, bfloat16", 2 * count)
    yield _each("activations", _activations(recipe, shape, again=recipe.train.gradient_checkpointing))
    yield _each("attention masks of packed rows", _alive(recipe) * _row(recipe) ** 2)
    logits = min(CHUNK_LOGITS, _row(recipe) * shape.vocabulary)
    yield _each("logits of a chunk of tokens, with their gradients", 4 * 4 * logits)


def _activations(recipe: Recipe, shape: Shape, *, again: bool) -> int:
    """What the backward pass needs of the rows in work: all of it, or (`again`) the input of every layer, and the
    inside of the one layer that is computed again."""
    rows, alive = _row(recipe), _alive(recipe)
    ends = 8 * rows * shape.hidden
    if again:
        return alive * (ends + 4 * rows * shape.hidden * shape.layers) + inside_layer(shape, rows, _width(recipe))
    return alive * (ends + inside_layer(shape, rows, _width(recipe)) * shape.layers)


def inside_layer(shape: Shape, rows: int, width: int) -> int:
    """Bytes that one layer keeps for a packed row: norms and residuals, attention, feed-forward, and the mask as the
    attention kernel wants it."""
    wide = 3 * shape.heads * shape.head_dim + 4 * shape.intermediate
    return rows * (28 * shape.hidden + width * wide) + width * rows**2


def _row(recipe: Recipe) -> int:
    """Tokens of a row at most: a longer sequence has one of its own."""
    rows = max(config.row_tokens for config in (recipe.sft, recipe.ppo) if config)
    return max(rows, recipe.rollout_agent().context_tokens) if recipe.ppo else rows


def _alive(recipe: Recipe) -> int:
    """Rows whose activations are kept at once: those of a micro-batch."""
    if recipe.ppo is None:
        return 1
    return math.ceil(recipe.ppo.micro_batch * recipe.rollout_agent().context_tokens / _row(recipe))


def _width(recipe: Recipe) -> int:
    """Bytes of a number in the forward pass."""
    return 2 if any(config.bf16 for config in (recipe.sft, recipe.ppo) if config) else 4


def _engine(recipe: Recipe, shape: Shape, count: int) -> tuple[Part, Part]:
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    sequences = recipe.serve.max_running * recipe.rollout_agent().context_tokens
    return (
        _divided("weights, bfloat16", 2 * count),
        _divided(f"key-value cache of {recipe.serve.max_running} whole contexts, bfloat16", cache * sequences),
    )


def _sft_tokens(recipe: Recipe) -> int:
    return recipe.sft.max_tokens if recipe.sft else 0


def _divided(name: str, size: int) -> Part:
    return Part(name=name, gib=size / GIB, divided=True)


def _each(name: str, size: int) -> Part:
    return Part(name=name, gib=size / GIB, divided=False)


def placement(recipe: Recipe, got: Estimate) -> Iterator[str]:
    """What runs where, a line each."""
    agent = recipe.rollout_agent()
    if recipe.ppo is not None:
        yield (
            f"host of the leader: the loop, at most {recipe.rollout.concurrency} sandboxes at once,"
            f" {agent.max_turns} turns and {agent.episode_deadline_s:g} s an episode"
        )
        held = next(card.contexts for card in got.cards if card.gpu_memory_gb == got.gpu_memory_gb)
        yield (
            f"engines: {recipe.serve.engines} on {recipe.serve.tensor_parallel} device(s) each, room for {held} whole"
            f" contexts each, {recipe.serve.max_running} sequences at once"
        )
    if got.learner_gpus is None:
        yield "learner: no number of these devices is enough, since what each of them needs for itself does not fit"
    elif got.learner_gpus == 1:
        yield "learner: one process on one device"
    else:
        where = f"its leader keeps up to {got.host_gib:.1f} GiB on its host"
        yield f"learner: {got.learner_gpus} processes, one a device; {where}"


def train_command(recipe_path: str, got: Estimate) -> str:
    """How to start the learner."""
    command = f"termloom train {recipe_path} ..."
    if got.learner_gpus is None or got.learner_gpus == 1:
        return command
    return f"torchrun --standalone --nproc-per-node {got.learner_gpus} --no-python {command}"


_SLACK_TOKENS = 64
"""Of an engine's context beyond the episode's: what a server keeps for itself makes no answer of ours too long."""


def serve_command(recipe: Recipe, model: str) -> str:
    """How to start one of the recipe's engines on a machine with devices."""
    serve = recipe.serve
    return (
        f"python -m sglang.launch_server --model-path {model} --weight-version 0 --tp {serve.tensor_parallel}"
        f" --dtype bfloat16 --context-length {recipe.context_tokens + _SLACK_TOKENS}"
        f" --max-running-requests {serve.max_running} --max-prefill-tokens {serve.max_batched_tokens}"
        f" --mem-fraction-static {serve.memory_fraction:g} --enable-metrics"
    )


def shape_of(model: Path) -> Shape:
    """Dimensions from a model directory's `config.json`. Raises: UserError."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return Shape(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied_embeddings=config.get("tie_word_embeddings", False),
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(str(path), f"cannot be read as a model's configuration: {error!r}", "Give --model") from None
