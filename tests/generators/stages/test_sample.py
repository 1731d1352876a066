"""The published set depends on what the candidates are, never on the order in which they end."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from generators.dedupe import Overlap
from generators.messages import Sampled, Selected
from generators.quota import Cell
from generators.stages.sample import CandidateSource
from generators.taxonomy import load_taxonomy
from runtime.stage import Message, Rejected
from tests.generators.parts import RUN, make_certified

Fate = Callable[[int], Message]


def source(count: int, candidates: int, overlap: Overlap | None = None) -> CandidateSource:
    return of_cells([Cell(label="", wanted=count, bound=candidates, seed=0)], overlap)


def of_cells(cells: list[Cell], overlap: Overlap | None = None) -> CandidateSource:
    return CandidateSource(taxonomy=load_taxonomy(), seed=0, cells=cells, run_id=RUN, overlap=overlap)


def rejected(index: int) -> Rejected:
    return Rejected(item=f"0-{index:05d}", run_id=RUN, stage="solve", reason="unsolved")


def play(candidates: CandidateSource, fate: Fate, order: random.Random) -> tuple[list[str], int]:
    """Let every candidate end in some order; returns the selected items and the number admitted."""
    open_items = [m.blueprint.index for m in candidates.start() if isinstance(m, Sampled)]
    admitted, selected = len(open_items), list[str]()
    while open_items:
        index = open_items.pop(order.randrange(len(open_items)))
        for message in candidates.settled(fate(index)):
            if isinstance(message, Sampled):
                open_items.append(message.blueprint.index)
                admitted += 1
            elif isinstance(message, Selected):
                selected.append(message.certified.item)
    return selected, admitted


@given(
    fates=st.lists(st.sampled_from(["good", "bad", "copy"]), min_size=40, max_size=40),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_any_two_orders_of_ending_give_the_same_set(fates: list[str], seeds: tuple[int, int]) -> None:
    def fate(index: int) -> Message:
        if fates[index] == "bad":
            return rejected(index)
        return make_certified(index=index, like=3 if fates[index] == "copy" else None)

    first, second = (play(source(5, 40), fate, random.Random(seed)) for seed in seeds)
    assert first == second
    assert first[0] == sorted(first[0])
    enough = sum(kind == "good" for kind in fates) + ("copy" in fates) >= 5
    assert (len(first[0]) == 5) == enough


def test_a_rejection_is_replaced_by_the_next_index() -> None:
    selected, admitted = play(
        source(3, 10), lambda i: rejected(i) if i < 2 else make_certified(index=i), random.Random(0)
    )
    assert selected == ["0-00002", "0-00003", "0-00004"]
    assert admitted == 5


def test_admission_ends_at_the_bound() -> None:
    selected, admitted = play(source(3, 7), rejected, random.Random(0))
    assert (selected, admitted) == ([], 7)


def test_a_near_duplicate_of_a_lower_index_is_screened_and_replaced() -> None:
    candidates = source(2, 10)
    selected, admitted = play(
        candidates, lambda i: make_certified(index=i, like=0 if i < 2 else None), random.Random(1)
    )
    assert (selected, admitted) == (["0-00000", "0-00002"], 3)
    assert [(r.item, r.reason) for r in candidates.screened] == [("0-00001", "near_duplicate")]


def test_a_candidate_that_holds_a_listed_gram_is_screened() -> None:
    words = make_certified(index=0).solved.examined.draft.instruction.split()
    candidates = source(1, 10, Overlap([" ".join(words[4:12])]))
    selected, _ = play(candidates, lambda i: make_certified(index=i), random.Random(0))
    assert selected == ["0-00001"]
    assert [r.reason for r in candidates.screened] == ["benchmark_overlap"]


def test_the_end_of_a_written_task_admits_nothing() -> None:
    candidates = source(1, 10)
    candidates.start()
    assert candidates.settled(Rejected(item="0-00000-publish", run_id=RUN, stage="publish", reason="fault")) == ()


def test_a_requeued_candidate_fills_a_gap_and_nothing_else() -> None:
    short = source(2, 2)
    short.start()
    assert short.settled(rejected(0)) == []
    assert [m.certified.item for m in short.settled(make_certified(index=1)) if isinstance(m, Selected)] == ["0-00001"]
    again = msgspec.structs.replace(make_certified(index=0), item="0-00000-r1")
    assert [m.certified.item for m in short.settled(again) if isinstance(m, Selected)] == ["0-00000-r1"]
    more = msgspec.structs.replace(make_certified(index=5), item="0-00005-r1")
    assert short.settled(more) == ()


CELLS = [
    Cell(label="q1", wanted=2, bound=8, seed=1, categories=("database",), levels=(1,)),
    Cell(label="q2", wanted=1, bound=3, seed=2, levels=(10,)),
    Cell(label="", wanted=2, bound=8, seed=0),
]


@given(
    fates=st.dictionaries(st.tuples(st.sampled_from(["q1", "q2", ""]), st.integers(0, 7)), st.booleans()),
    copies=st.sets(st.tuples(st.sampled_from(["q1", "q2", ""]), st.integers(0, 7))),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_each_cell_is_filled_alike_in_any_order_of_ending(
    fates: dict[tuple[str, int], bool], copies: set[tuple[str, int]], seeds: tuple[int, int]
) -> None:
    def run(order: random.Random) -> tuple[list[str], int]:
        candidates = of_cells(CELLS)
        open_items = [m for m in candidates.start() if isinstance(m, Sampled)]
        admitted, selected = len(open_items), list[str]()
        while open_items:
            item = open_items.pop(order.randrange(len(open_items))).item
            _, *label, number = item.split("-")
            place = ("".join(label), int(number))
            end: Message = Rejected(item=item, run_id=RUN, stage="solve", reason="unsolved")
            if fates.get(place, True):
                like = 0 if place in copies else 1 + place[1] + 100 * len(place[0]) + 1000 * (place[0] == "q2")
                end = msgspec.structs.replace(make_certified(index=like), item=item)
            for message in candidates.settled(end):
                if isinstance(message, Sampled):
                    open_items.append(message)
                    admitted += 1
                elif isinstance(message, Selected):
                    selected.append(message.certified.item)
        return selected, admitted

    first, second = (run(random.Random(seed)) for seed in seeds)
    assert first == second
    assert sum("-q1-" in item for item in first[0]) <= 2
    if not copies and all(fates.values()):
        assert first == (["0-q1-00000", "0-q1-00001", "0-q2-00000", "0-00000", "0-00001"], 5)


def test_a_cell_draws_what_it_is_for() -> None:
    drawn = {m.item: m.blueprint for m in of_cells(CELLS).start() if isinstance(m, Sampled)}
    assert {drawn[f"0-q1-0000{n}"].category for n in range(2)} == {"database"}
    assert {drawn[f"0-q1-0000{n}"].level for n in range(2)} == {1}
    assert drawn["0-q2-00000"].level == 10
    assert drawn["0-00000"] == load_taxonomy().draw(0, 0)


def test_a_requeued_candidate_fills_a_gap_of_its_own_cell() -> None:
    candidates = of_cells([Cell(label="q1", wanted=1, bound=1, seed=1), Cell(label="", wanted=1, bound=1, seed=0)])
    candidates.start()
    candidates.settled(make_certified(index=0))
    first = Rejected(item="0-q1-00000", run_id=RUN, stage="solve", reason="gave_up")
    assert [m.certified.item for m in candidates.settled(first) if isinstance(m, Selected)] == ["0-00000"]
    again = msgspec.structs.replace(make_certified(index=7), item="0-q1-00000-r1")
    assert [m.certified.item for m in candidates.settled(again) if isinstance(m, Selected)] == ["0-q1-00000-r1"]
