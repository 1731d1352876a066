"""A recipe: every number of a training run, in one TOML file.

Invariants:
- An unknown key is refused with a suggestion, wherever it stands; a wrong value is refused with its place.
- What cannot work together is refused here, before anything is started: a staleness bound without the decoupled
  objective, a sampler whose temperature is not the learner's.
- A recipe holds no path of a machine but the model's; where tasks are and where results go is said on the command line.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from pydantic import ValidationError

from runtime.agent.settings import EVALUATE, SOLVE, AgentSettings
from runtime.errors import UserError
from trainer.lora import LoRAConfig
from trainer.ppo import PPOConfig
from trainer.sft import SFTConfig


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a recipe's tables."""


class Shape(Table, frozen=True, kw_only=True):
    """A model's dimensions: what a dry run counts with when the model is not at hand."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied_embeddings: bool = False


class ModelTable(Table, frozen=True, kw_only=True):
    name: str
    """For people: what the model is called where it is published."""
    path: str = ""
    """A Hugging Face directory. Empty: given on the command line. Nothing is ever fetched."""
    chat_format: Literal["llama3", "qwen2.5", "qwen3", "small"]
    shape: Shape | None = None


class RolloutTable(Table, frozen=True, kw_only=True):
    group_size: int = 16
    """Episodes of one task drawn together."""
    groups: int = 16
    """Groups in one update: `groups * group_size` episodes."""
    bound: int = 0
    """How many versions older than the learner an episode's oldest token may be. 0: as good as synchronous."""
    concurrency: int = 64
    """Episodes in work at once."""
    max_instruction_tokens: int = 1536
    """Tasks whose instruction is longer are left out."""
    context_overflow: Literal["grade", "exclude"] = "grade"
    """An episode that ran out of tokens (its context is full, its answers were cut) is graded on what it left, or has
    no reward. The papers filter nothing."""
    attempts: int = 5
    """Tries of one episode when infrastructure fails it; after that it is left out."""


class TrainTable(Table, frozen=True, kw_only=True):
    epochs: int = 10
    """Passes over the tasks, each in its own seeded order."""
    steps: int | None = None
    """Updates at most; None: as many as the tasks give."""
    checkpoint_every: int = 10
    checkpoint_keep: int = 10
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time for a fraction of the memory."""
    evaluate_every: int = 50
    """Updates between evaluations on the held-out tasks; 0: only before and after."""
    patience_s: float = 1800.0
    """With no episode, update or hand-over finished for so long, the run ends and says what everything waits for."""
    shuffle_rewards: bool = False
    """A control: every batch learns from its rewards in another order; what it gains is then not their doing."""


class EvaluateTable(Table, frozen=True, kw_only=True):
    attempts: int = 1
    """Per task: the k of pass@k."""
    resamples: int = 2000
    """Of the bootstrap."""
    agent: dict[str, Any] = {}
    """What differs from the recipe's `agent` table."""


class ServeTable(Table, frozen=True, kw_only=True):
    """Who samples. `torch` serves in this process; `sglang` servers are started beside it, and a dry run prints how."""

    engine: Literal["torch", "sglang"] = "sglang"
    engines: int = 1
    handover: Literal["disk", "tensors", "group"] = "disk"
    """How weights travel to SGLang servers: `trainer/policy/sglang_weights.py`."""
    tensor_parallel: int = 1
    max_running: int = 32
    """Sequences decoded at once by one engine."""
    max_batched_tokens: int = 16_384
    """Tokens prefilled at once by one engine."""
    memory_fraction: float = 0.9
    """Of a device's memory, for weights and key-value cache of the engine."""
    probe_tolerance: float = 1e-3
    """Nats a token by which an engine may differ from the learner after a hand-over; bfloat16 needs about 0.1."""


class HardwareTable(Table, frozen=True, kw_only=True):
    gpus: int = 0
    gpu_memory_gb: float = 80.0


class Recipe(Table, frozen=True, kw_only=True):
    """One training run: fine-tuning, PPO, or the first and then the second."""

    name: str
    description: str = ""
    seed: int = 42
    model: ModelTable
    agent: dict[str, Any] = {}
    rollout: RolloutTable = RolloutTable()
    train: TrainTable = TrainTable()
    evaluate: EvaluateTable = EvaluateTable()
    serve: ServeTable = ServeTable()
    hardware: HardwareTable = HardwareTable()
    sft: SFTConfig | None = None
    ppo: PPOConfig | None = None
    lora: LoRAConfig | None = None
    """Train adapters only; engines and exports get them merged."""

    @property
    def batch(self) -> int:
        """Episodes in one update."""
        return self.rollout.groups * self.rollout.group_size

    def rollout_agent(self) -> AgentSettings:
        """Limits of an episode that is trained on: the sampler's temperature is the learner's."""
        temperature = {} if self.ppo is None else {"temperature": self.ppo.temperature}
        return AgentSettings(**(SOLVE.model_dump(exclude_unset=True) | temperature | self.agent))

    def evaluation_agent(self) -> AgentSettings:
        """Limits of an episode that is measured."""
        turns = EVALUATE.model_dump(exclude_unset=True)
        return AgentSettings(**(self.rollout_agent().model_dump() | turns | self.evaluate.agent))

    @property
    def context_tokens(self) -> int:
        """What an engine's context must hold: the longest episode, trained on or measured."""
        return max(self.rollout_agent().context_tokens, self.evaluation_agent().context_tokens)


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe. Raises: UserError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            str(path), error.strerror or str(error), "Give a readable recipe, such as those in recipes/"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"not TOML: {error}", "Mend the file at that place") from None
    _refuse_unknown(values, str(path))
    try:
        recipe = msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise UserError(str(path), _lower(str(error)), "See the fields in trainer/recipe.py") from None
    check(recipe, str(path))
    return recipe


def check(recipe: Recipe, where: str) -> None:
    """Refuse what cannot work together. Raises: UserError."""
    if recipe.sft is None and recipe.ppo is None:
        raise UserError(where, "it has neither an 'sft' nor a 'ppo' table", "Add the one that you want to run")
    for name, settings in (("agent", recipe.rollout_agent), ("evaluate.agent", recipe.evaluation_agent)):
        try:
            settings()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join((name, *map(str, first["loc"])))
            raise UserError(
                f"{where}: {place}", f"{first['input']!r} is refused: {_lower(first['msg'])}", "Mend it"
            ) from None
    for name, value in _positive(recipe):
        if value < 1:
            raise UserError(f"{where}: {name}", f"{value} is refused", "It must be at least 1")
    if recipe.ppo is not None:
        _check_ppo(recipe, recipe.ppo, where)


def _check_ppo(recipe: Recipe, ppo: PPOConfig, where: str) -> None:
    if recipe.rollout.bound > 0 and ppo.behaviour_cap is None:
        raise UserError(
            f"{where}: ppo.behaviour_cap",
            f"is not set while rollout.bound is {recipe.rollout.bound}: stale episodes would count as fresh ones",
            "Set it, say to 5.0, or set rollout.bound to 0",
        )
    if recipe.rollout_agent().kind == "memory":
        raise UserError(
            f"{where}: agent.kind",
            "'memory' begins fresh contexts, and PPO learns from episodes of one context only",
            "Train with 'minimal' or 'terminus-2'; measure with evaluate.agent.kind = 'memory'",
        )
    if not 0 <= ppo.negative_weight <= 1:
        raise UserError(f"{where}: ppo.negative_weight", f"is {ppo.negative_weight:g}", "Give a number from 0 to 1")
    sampled = recipe.rollout_agent().temperature
    if sampled != ppo.temperature or ppo.temperature <= 0:
        raise UserError(
            f"{where}: agent.temperature",
            f"episodes would be sampled at {sampled:g} and learned from at {ppo.temperature:g}",
            "Leave it out: ppo.temperature, above 0, is used for both",
        )


_SFT_SIZES = ("batch", "epochs", "max_tokens", "row_tokens", "max_skips", "checkpoint_every")
_PPO_SIZES = ("epochs", "policy_minibatch", "critic_minibatch", "micro_batch", "row_tokens", "max_skips")


def _positive(recipe: Recipe) -> Iterator[tuple[str, int]]:
    yield "rollout.group_size", recipe.rollout.group_size
    yield "rollout.groups", recipe.rollout.groups
    yield "rollout.concurrency", recipe.rollout.concurrency
    yield "rollout.attempts", recipe.rollout.attempts
    yield "rollout.bound", recipe.rollout.bound + 1
    yield "train.epochs", recipe.train.epochs
    yield "train.checkpoint_every", recipe.train.checkpoint_every
    yield "train.checkpoint_keep", recipe.train.checkpoint_keep - 1
    yield "evaluate.attempts", recipe.evaluate.attempts
    yield "evaluate.resamples", recipe.evaluate.resamples
    yield "serve.engines", recipe.serve.engines
    yield "serve.max_running", recipe.serve.max_running
    if recipe.sft is not None:
        yield from ((f"sft.{name}", getattr(recipe.sft, name)) for name in _SFT_SIZES)
    if recipe.sft is not None and recipe.sft.threads is not None:
        yield "sft.threads", recipe.sft.threads
    if recipe.ppo is not None:
        yield from ((f"ppo.{name}", getattr(recipe.ppo, name)) for name in _PPO_SIZES)
    if recipe.ppo is not None and recipe.ppo.policy_anneal is not None:
        yield "ppo.policy_anneal", recipe.ppo.policy_anneal
    if recipe.lora is not None:
        yield "lora.rank", recipe.lora.rank
        yield "number of lora.targets", len(recipe.lora.targets)


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    for path, known in _unknown(values, Recipe, ()):
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        dotted = [".".join((*path[:-1], name)) for name in (near or sorted(known))]
        remedy = f"Did you mean '{dotted[0]}'?" if near else f"Known are {', '.join(dotted)}"
        raise UserError(where, f"unknown key '{'.'.join(path)}'", remedy)


def _unknown(
    values: Mapping[str, Any], table: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    fields = _fields(table)
    for key, value in values.items():
        if key not in fields:
            yield (*path, key), list(fields)
        elif isinstance(value, Mapping) and (inner := _table_of(fields[key], key)) is not None:
            yield from _unknown(value, inner, (*path, key))


def _fields(table: Any) -> dict[str, Any]:
    if table is AgentSettings:
        return dict(AgentSettings.model_fields)
    return {field.name: field.type for field in msgspec.structs.fields(table)}


def _table_of(kind: Any, key: str) -> Any:
    """The table that a key holds, None when it holds a plain value."""
    if key == "agent":
        return AgentSettings
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, msgspec.Struct)), None)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
