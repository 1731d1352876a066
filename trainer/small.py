"""A small policy from nothing: tokeniser, model of about a million parameters, and the fine-tuning it starts from.

Reinforcement can only sort what a policy already tries, so the start is made in two parts (the numbers and what happens
without each: `docs/design/small-policy.md`):
 1. Clean demonstrations until names are copied. That skill comes late and abruptly, and no mistake may blur it before.
 2. Demonstrations by someone who slips most of the time: the policy then tries several programs, with the right names.

Invariants:
- Everything is made from the demonstrations and a seed; nothing is fetched and nothing is shipped.
- A demonstration of a task that the policy will be measured on is left out.
- What is written is a Hugging Face directory that transformers and SGLang load: model, tokeniser, end marker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import msgspec
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.errors import UserError
from runtime.trajectory import Trajectory, decode
from trainer.model import save_model, small_llama
from trainer.sft import SFTConfig, example_of, fine_tune
from trainer.tokens import FORMATS, Encoder

FORMAT = FORMATS["small"]

_PIECES = r"</?\w+>| ?(?:/home(?:/\w+)*/)| ?\w+|\.\w+|\s+|[^\w\s]"
"""What is one token if it is frequent: a tag, a directory, a word with the space before it, a suffix."""


class SmallConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number of the start."""

    vocabulary: int = 512
    """With the markers. 256 of them are the bytes, so that any text can be encoded."""
    hidden: int = 128
    layers: int = 4
    context: int = 512
    clean: SFTConfig = SFTConfig(learning_rate=2e-3, epochs=8, weight_decay=0.01, row_tokens=512, max_tokens=512)
    noisy: SFTConfig = SFTConfig(learning_rate=1e-3, epochs=4, weight_decay=0.01, row_tokens=512, max_tokens=512)


def train_tokenizer(texts: Iterable[str], *, vocabulary: int) -> Tokenizer:
    """A byte-level BPE over these texts, with the markers of the small chat format. Deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[FORMAT.open, FORMAT.close],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def texts_of(trajectories: Iterable[Trajectory]) -> Iterable[str]:
    """All text that a policy reads or writes in these episodes, role names as they are framed."""
    for trajectory in trajectories:
        for message in trajectory.opening:
            yield f"{message.role}{FORMAT.after_role}"
            yield message.content
        for turn in trajectory.turns:
            yield f"assistant{FORMAT.after_role}"
            yield turn.text
            yield turn.observation or ""
