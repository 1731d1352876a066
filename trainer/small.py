"""A small policy from nothing: a tokeniser for the texts of demonstrations, and a Llama of a million random weights.

Why it is made as it is, and what happens otherwise: `docs/design/small-policy.md`.

Invariants:
- Everything is made from the demonstrations and a seed; nothing is fetched and nothing is shipped.
- Any text can be encoded: all bytes are in the vocabulary.
- What is written is a Hugging Face directory that transformers and SGLang load: weights, tokeniser, end marker.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.errors import UserError
from runtime.trajectory import Trajectory, decode
from trainer.model import save_model, small_llama
from trainer.tokens import FORMATS

VOCABULARY = 512
"""With the two markers and the 256 bytes: a larger one costs more time than it saves tokens."""
CONTEXT = 512
_FORMAT = FORMATS["small"]
_PIECES = r"</?\w+>| ?/home(?:/\w+)*/|\w+|\.\w+|\s+|[^\w\s]"
"""What becomes one token when it is frequent: a tag, a directory with the space before it, a word, a suffix. A word is
the same token wherever it stands, so that one skill copies it from anywhere to anywhere."""


def make_policy(demonstrations: Sequence[Trajectory], directory: Path, *, seed: int = 0) -> int:
    """Write the directory of an untrained policy, whole or not at all. Returns its number of parameters."""
    fresh = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    tokenizer = train_tokenizer(texts_of(demonstrations))
    close_id = tokenizer.token_to_id(_FORMAT.close)
    model = small_llama(tokenizer.get_vocab_size(), context=CONTEXT, close_id=close_id, seed=seed)
    save_model(model, fresh)
    tokenizer.save(str(fresh / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _FORMAT.close,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (fresh / "tokenizer_config.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    fresh.rename(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def read_demonstrations(paths: Iterable[Path]) -> list[Trajectory]:
    """All trajectories of these files. Raises: UserError, TrajectoryInvalid."""
    found = [decode(line, source=str(path)) for path in paths for line in _bytes_of(path).splitlines() if line.strip()]
    if not found:
        raise UserError("--demonstrations", "hold no trajectory", "`termloom demonstrate` writes some")
    return found


def train_tokenizer(texts: Iterable[str], *, vocabulary: int = VOCABULARY) -> Tokenizer:
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
        special_tokens=[_FORMAT.open, _FORMAT.close],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def texts_of(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """All text that a policy reads or writes in these episodes, role names as they are framed."""
    for trajectory in trajectories:
        for message in trajectory.opening:
            yield message.role + _FORMAT.after_role
            yield message.content
        for turn in trajectory.turns:
            yield f"assistant{_FORMAT.after_role}"
            yield turn.text
            if turn.observation is not None:
                yield turn.observation


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), "Give a file of trajectories") from None
