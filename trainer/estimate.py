"""What a recipe needs, counted before anything is started: memory by part, tokens, devices.

Counted with gradient checkpointing where the recipe asks for it, AdamW with float32 moments, weights and gradients in
float32, and the worst case of the recipe's own limits (every row full, every sequence at the context's end). Optimiser
state, gradients and weights are divided by the devices of the learner, activations are not.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec

from runtime.errors import UserError
from trainer.recipe import Recipe, Shape

GIB = 1 << 30
USABLE = 0.9
"""Of a device's memory: the rest goes to the runtime and to fragments."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of memory."""

    name: str
    gib: float
    divided: bool
    """Whether it is spread over the devices of its kind; otherwise each has all of it."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe needs."""

    parameters: int
    learner: tuple[Part, ...]
    engine: tuple[Part, ...]
    """Of one engine, over its `tensor_parallel` devices."""
    learner_gpus: int
    engine_gpus: int
    episodes_per_update: int
    tokens_per_update: int
    """At most: every episode at the end of its context."""
    tokens_per_task_pass: int
    """At most, for each task in each pass over the tasks."""
    gpu_memory_gb: float

    @property
    def gpus_shared(self) -> int:
        """Learner and engines on the same devices, in turns."""
        return max(self.learner_gpus, self.engine_gpus)

    @property
    def gpus_apart(self) -> int:
        return self.learner_gpus + self.engine_gpus


def parameters(shape: Shape) -> int:
    """Parameters of a decoder with grouped-query attention, a gated feed-forward layer and two norms a layer."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate + 2)
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied_embeddings else 2)
    return shape.layers * layer + embeddings + shape.hidden


def estimate(recipe: Recipe, shape: Shape) -> Estimate:
    """Count a recipe for a model of a shape."""
    count, memory = parameters(shape), recipe.hardware.gpu_memory_gb * 1e9 / GIB
    learner, engine = _learner(recipe, shape, count), _engine(recipe, shape, count)
    fixed = sum(part.gib for part in learner if not part.divided)
    divided = sum(part.gib for part in learner if part.divided)
    room = USABLE * memory - fixed
    tokens = recipe.rollout_agent().context_tokens if recipe.ppo else _sft_tokens(recipe)
    episodes = recipe.batch if recipe.ppo else (recipe.sft.batch if recipe.sft else 0)
    return Estimate(
        parameters=count,
        learner=learner,
        engine=engine,
        learner_gpus=math.ceil(divided / room) if room > 0 else math.ceil((divided + fixed) / (USABLE * memory)),
        engine_gpus=recipe.serve.engines * recipe.serve.tensor_parallel if recipe.ppo else 0,
        episodes_per_update=episodes,
        tokens_per_update=episodes * tokens,
        tokens_per_task_pass=recipe.rollout.group_size * tokens if recipe.ppo else tokens,
        gpu_memory_gb=recipe.hardware.gpu_memory_gb,
    )


def _learner(recipe: Recipe, shape: Shape, count: int) -> tuple[Part, ...]:
    bf16 = any(config.bf16 for config in (recipe.sft, recipe.ppo) if config)
    rows = max(config.row_tokens for config in (recipe.sft, recipe.ppo) if config)
    width = 2 if bf16 else 4
    parts = [_divided("policy: weights, float32", 4 * count), _divided("policy: gradients, float32", 4 * count)]
    parts += [_divided("policy: AdamW moments, float32", 8 * count)]
    if bf16:
        parts += [_divided("policy: weights for the forward pass, bfloat16", 2 * count)]
    if recipe.ppo and recipe.ppo.advantage == "gae":
        parts += [_divided("critic: as the policy", (16 + 2 * bf16) * count)]
    return (
        *parts,
        _each("activations", _activations(recipe, shape, rows, width)),
        _each("attention mask of a packed row", rows * rows),
        _each("logits at trainable tokens, with their gradient", 2 * width * rows * shape.vocabulary),
    )


def _activations(recipe: Recipe, shape: Shape, rows: int, width: int) -> int:
    """Of one packed row: the input of every layer and the inside of one, or the inside of all."""
    inside = rows * (8 * shape.hidden + 3 * shape.intermediate + 2 * shape.heads * shape.head_dim) * width
    if recipe.train.gradient_checkpointing:
        return rows * shape.hidden * shape.layers * width + inside
    return inside * shape.layers


def _engine(recipe: Recipe, shape: Shape, count: int) -> tuple[Part, ...]:
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


def serve_command(recipe: Recipe, model: str) -> str:
    """How to start one of the recipe's engines on a machine with devices."""
    serve = recipe.serve
    return (
        f"python -m sglang.launch_server --model-path {model} --weight-version 0 --tp {serve.tensor_parallel}"
        f" --dtype bfloat16 --context-length {recipe.rollout_agent().context_tokens}"
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
