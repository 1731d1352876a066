"""sample: where the candidates come from, and which of them become the task set.

`count` candidates are admitted, then one more for each that is rejected, up to `candidates` in all. The set is decided
in the order of the indices, whatever order the candidates finish in: a certified candidate is taken unless it is a near
duplicate of one taken before it or overlaps a benchmark. So seed, count and settings alone decide what is published.

The decision is the source's because only the source sees every item's end, once and recorded: a resumed run decides
again what was decided before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from generators.dedupe import THRESHOLD, Overlap, Sketch, similarity, sketch_task
from generators.messages import Certified, Sampled, Selected
from generators.taxonomy import Taxonomy
from runtime.stage import Message, Rejected


class CandidateSource:
    """The `Source` of a generation run."""

    def __init__(
        self,
        *,
        taxonomy: Taxonomy,
        seed: int,
        count: int,
        candidates: int,
        run_id: str,
        categories: Collection[str] = (),
        levels: Collection[int] = (),
        style: str = "",
        families: tuple[str, ...] = (),
        overlap: Overlap | None = None,
    ) -> None:
        self._draw = partial(taxonomy.draw, categories=categories, levels=levels, style=style, families=families)
        self._seed, self._count, self._candidates, self._run_id = seed, count, candidates, run_id
        self._overlap = overlap or Overlap()
        self._index: dict[str, int] = {}
        """Index of each admitted item."""
        self._ended: dict[int, Certified | None] = {}
        """Candidates that came to an end and wait for those before them; None = rejected."""
        self._next = 0
        self._taken: list[tuple[str, Sketch]] = []
        self.screened: list[Rejected] = []
        """Certified candidates that were not taken."""

    def start(self) -> Sequence[Message]:
        return [self._sample() for _ in range(min(self._count, self._candidates))]

    def settled(self, message: Message) -> Sequence[Message]:
        if message.item not in self._index:
            return self._late(message)
        certified = message if isinstance(message, Certified) else None
        self._ended[self._index[message.item]] = certified
        admitted: list[Message] = [] if certified else self._replace()
        while self._next in self._ended:
            candidate = self._ended.pop(self._next)
            self._next += 1
            if candidate is not None:
                admitted += self._decide(candidate)
        return admitted

    def _late(self, message: Message) -> Sequence[Message]:
        """A task was written; or a candidate that had been given up was requeued: it fills a gap that is left."""
        gap = len(self._taken) + len(self._index) - self._next < self._count
        return self._decide(message) if gap and isinstance(message, Certified) else ()

    def _sample(self) -> Sampled:
        index = len(self._index)
        item = f"{self._seed}-{index:05d}"
        self._index[item] = index
        return Sampled(item=item, run_id=self._run_id, blueprint=self._draw(self._seed, index))

    def _replace(self) -> list[Message]:
        return [self._sample()] if len(self._index) < self._candidates else []

    def _decide(self, certified: Certified) -> list[Message]:
        examined = certified.solved.examined
        sketch = sketch_task(examined.draft, examined.environment, certified.solved.reference)
        reason, detail = self._objection(certified, sketch)
        if not reason:
            self._taken.append((certified.item, sketch))
            return [Selected(item=f"{certified.item}-publish", run_id=self._run_id, certified=certified)]
        self.screened.append(
            Rejected(item=certified.item, run_id=self._run_id, stage="publish", reason=reason, detail=detail)
        )
        return self._replace()

    def _objection(self, certified: Certified, sketch: Sketch) -> tuple[str, str]:
        solved = certified.solved
        texts = (solved.examined.draft.instruction, solved.examined.final_tests, "\n".join(solved.reference.commands))
        if gram := self._overlap.find(texts):
            return "benchmark_overlap", gram
        for item, taken in self._taken:
            if (alike := similarity(taken, sketch)) >= THRESHOLD:
                return "near_duplicate", f"of {item} ({alike:.2f})"
        return "", ""
