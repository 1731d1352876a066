"""Near duplicates among the tasks of a run, and overlap with benchmarks that must stay unseen.

A task is compared in three parts: instruction, environment files, reference. Each part is the set of its word 5-grams
("shingles"), kept as a bottom-k sketch: the k smallest of the hashes. The k smallest hashes of a union are a uniform
sample of it, so the share of them that lies in both sketches estimates the Jaccard similarity (Cohen and Kaplan,
"Summarizing data using bottom-k sketches", PODC 2007). Two tasks are near duplicates when the mean over the parts
reaches `THRESHOLD`.

Overlap is exact: a list of word n-grams, one a line, as a benchmark's keepers publish it. A task that holds one is out.

Everything here is a pure function of its arguments; the hash is stable over processes.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from generators.messages import Draft, Environment, Reference
from runtime.errors import UserError

THRESHOLD = 0.8
"""Two draws of one procedural family with one wording stay below 0.6; a renamed copy of a task lies above 0.9."""

_SKETCH_SIZE = 128
_WIDTH = 5
_FILE_BYTES = 64 << 10
_WORD = re.compile(r"\w+|[^\w\s]")


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
    """A task as near-duplicate detection sees it."""

    instruction: tuple[int, ...]
    files: tuple[int, ...]
    reference: tuple[int, ...]


def sketch_task(draft: Draft, environment: Environment, reference: Reference) -> Sketch:
    """Sketch the three parts. Files count with their first 64 KiB."""
    files = " ".join(f"{f.path} {f.data[:_FILE_BYTES].decode(errors='replace')}" for f in environment.files)
    return Sketch(
        instruction=_bottom(_words(draft.instruction)),
        files=_bottom(_words(files)),
        reference=_bottom(_words(" ".join(reference.commands))),
    )


def similarity(a: Sketch, b: Sketch) -> float:
    """Estimated mean Jaccard similarity of the three parts, 0 to 1."""
    pairs = ((a.instruction, b.instruction), (a.files, b.files), (a.reference, b.reference))
    return sum(_jaccard(x, y) for x, y in pairs) / len(pairs)


class Overlap:
    """Benchmark n-grams that no task may hold. Grams shorter than 5 words say nothing and are refused."""

    def __init__(self, grams: Iterable[str] = ()) -> None:
        self._by_length: dict[int, set[int]] = defaultdict(set)
        for gram in grams:
            words = _words(gram)
            if len(words) < _WIDTH:
                raise ValueError(f"the n-gram {gram.strip()!r} has fewer than {_WIDTH} words")
            self._by_length[len(words)].add(_hash(words))

    @classmethod
    def load(cls, path: Path) -> Overlap:
        """Read a list, one n-gram a line. Raises: UserError."""
        try:
            return cls(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        except (OSError, ValueError) as error:
            raise UserError(
                str(path), f"is no list of n-grams: {error}", "Give one n-gram of 5 or more words a line"
            ) from None

    def find(self, texts: Iterable[str]) -> str | None:
        """The first listed n-gram in any of the texts, None when there is none."""
        for text in texts:
            words = _words(text)
            for length, hashes in self._by_length.items():
                for gram in _grams(words, length):
                    if _hash(gram) in hashes:
                        return " ".join(gram)
        return None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: Sequence[str], width: int) -> Iterator[Sequence[str]]:
    return (words[start : start + width] for start in range(len(words) - width + 1))


def _hash(words: Sequence[str]) -> int:
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "big")


def _bottom(words: Sequence[str]) -> tuple[int, ...]:
    grams = _grams(words, min(_WIDTH, max(1, len(words))))
    return tuple(heapq.nsmallest(_SKETCH_SIZE, {_hash(gram) for gram in grams}))


def _jaccard(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    if not a and not b:
        return 1.0
    sample = heapq.nsmallest(_SKETCH_SIZE, {*a, *b})
    both = {*a} & {*b}
    return sum(value in both for value in sample) / len(sample)
