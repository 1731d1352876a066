"""sample: where the candidates come from, and which of them become the task set.

Each cell (`generators.quota`; without quotas there is one) admits as many candidates as tasks are wanted from it, then
one more for each that is rejected, up to its bound. The set is decided cell by cell and in each in the order of the
indices, whatever order the candidates finish in: a certified candidate is taken unless it is a near duplicate of one
taken before it or overlaps a benchmark. So seed, count and settings alone decide what is published.

The decision is the source's because only the source sees every item's end, once and recorded: a resumed run decides
again what was decided before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from generators.dedupe import THRESHOLD, Overlap, Sketch, similarity, sketch_task
from generators.messages import Certified, Sampled, Selected
from generators.quota import Cell
from generators.taxonomy import Taxonomy
from runtime.stage import Message, Rejected


class _Field:
    """The candidates of one cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.admitted = 0
        self.taken = 0
        self.next = 0
        """Index of the first candidate that is not decided."""
        self.ended: dict[int, Certified | None] = {}
        """Candidates that came to an end and wait for those before them; None = rejected."""

    @property
    def decided(self) -> bool:
        """Nothing more can come of this cell."""
        return self.next == self.admitted


class CandidateSource:
    """The `Source` of a generation run."""

    def __init__(
        self,
        *,
        taxonomy: Taxonomy,
        seed: int,
        cells: Sequence[Cell],
        run_id: str,
        style: str = "",
        families: tuple[str, ...] = (),
        overlap: Overlap | None = None,
    ) -> None:
        self._draw = partial(taxonomy.draw, style=style)
        self._families = families
        self._seed, self._run_id = seed, run_id
        self._fields = [_Field(cell) for cell in cells]
        self._overlap = overlap or Overlap()
        self._place: dict[str, tuple[_Field, int]] = {}
        """Cell and index of each admitted item."""
        self._taken: list[tuple[str, Sketch]] = []
        self.screened: list[Rejected] = []
        """Certified candidates that were not taken."""

    def start(self) -> Sequence[Message]:
        return [self._sample(field) for field in self._fields for _ in range(min(field.cell.wanted, field.cell.bound))]

    def settled(self, message: Message) -> Sequence[Message]:
        if message.item not in self._place:
            return self._late(message)
        field, index = self._place[message.item]
        certified = message if isinstance(message, Certified) else None
        field.ended[index] = certified
        admitted: list[Message] = [] if certified else self._replace(field)
        for undecided in self._fields:
            admitted += self._decide_on(undecided)
            if not undecided.decided:
                break
        return admitted

    def _decide_on(self, field: _Field) -> list[Message]:
        """Decide as far as the candidates before have ended."""
        admitted: list[Message] = []
        while field.next in field.ended:
            candidate = field.ended.pop(field.next)
            field.next += 1
            if candidate is not None:
                admitted += self._decide(candidate, field)
        return admitted

    def _late(self, message: Message) -> Sequence[Message]:
        """A task was written; or a candidate that had been given up was requeued: it fills a gap that is left."""
        field, _ = self._place.get(message.item.partition("-r")[0], (None, 0))
        if field is None or not isinstance(message, Certified):
            return ()
        gap = field.taken + field.admitted - field.next < field.cell.wanted
        return self._decide(message, field) if gap else ()

    def _sample(self, field: _Field) -> Sampled:
        cell, index = field.cell, field.admitted
        item = "-".join(filter(None, (str(self._seed), cell.label, f"{index:05d}")))
        field.admitted += 1
        self._place[item] = field, index
        families = cell.families or self._families
        blueprint = self._draw(cell.seed, index, categories=cell.categories, levels=cell.levels, families=families)
        return Sampled(item=item, run_id=self._run_id, blueprint=blueprint)

    def _replace(self, field: _Field) -> list[Message]:
        return [self._sample(field)] if field.admitted < field.cell.bound else []

    def _decide(self, certified: Certified, field: _Field) -> list[Message]:
        examined = certified.solved.examined
        sketch = sketch_task(examined.draft, examined.environment, certified.solved.reference)
        reason, detail = self._objection(certified, sketch)
        if not reason:
            field.taken += 1
            self._taken.append((certified.item, sketch))
            return [Selected(item=f"{certified.item}-publish", run_id=self._run_id, certified=certified)]
        self.screened.append(
            Rejected(item=certified.item, run_id=self._run_id, stage="publish", reason=reason, detail=detail)
        )
        return self._replace(field)

    def _objection(self, certified: Certified, sketch: Sketch) -> tuple[str, str]:
        solved = certified.solved
        texts = (solved.examined.draft.instruction, solved.examined.final_tests, "\n".join(solved.reference.commands))
        if gram := self._overlap.find(texts):
            return "benchmark_overlap", gram
        for item, taken in self._taken:
            if (alike := similarity(taken, sketch)) >= THRESHOLD:
                return "near_duplicate", f"of {item} ({alike:.2f})"
        return "", ""
