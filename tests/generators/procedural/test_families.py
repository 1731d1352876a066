"""Every family, at every depth: drawn, laid out, played right, played wrong, played back and checked for real.

The last tests break a sound piece on purpose, one promise at a time: the harness must see each break.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace as replace_struct

from generators.procedural import library
from generators.procedural.families import csv_filter
from generators.procedural.family import Family, Piece, Place

from .harness import Ground, draw, problems_of

PLAIN = [family for family in library.FAMILIES if family not in library.SERVICES]
"""Those with services have a base of their own: `test_service_families`."""


def _cases() -> list[object]:
    """Each plain family at each depth; one depth of each, in turn, is tried every time, the others by `-m sweep`."""
    return [
        pytest.param(
            family,
            depth,
            id=f"{family.name}-{depth}",
            marks=[] if place == number % len(family.depths) else [pytest.mark.sweep],
        )
        for number, family in enumerate(PLAIN)
        for place, depth in enumerate(family.depths)
    ]


@pytest.mark.namespace
@pytest.mark.parametrize(("family", "depth"), _cases())
def test_piece_keeps_every_promise(ground: Ground, family: Family, depth: int) -> None:
    assert problems_of(ground, family, 17 * depth, depth) == []


@pytest.mark.namespace
@pytest.mark.sweep
@pytest.mark.parametrize("family", PLAIN, ids=lambda family: family.name)
def test_many_seeds_keep_every_promise(ground: Ground, family: Family) -> None:
    found = {
        seed: problems_of(ground, family, seed, family.depths[seed % len(family.depths)]) for seed in range(100, 103)
    }
    assert {seed: problems for seed, problems in found.items() if problems} == {}


@pytest.mark.parametrize("family", library.FAMILIES, ids=lambda family: family.name)
def test_hundred_seeds_give_hundred_pieces(family: Family) -> None:
    depth = family.depths[-1]
    pieces = [
        draw(family, 0, depth)[0] if seed == 0 else _draw_in_same_place(family, seed, depth) for seed in range(100)
    ]
    assert len({piece.commands for piece in pieces}) == 100
    assert len({(piece.files, piece.setup) for piece in pieces}) == 100


@pytest.mark.parametrize("family", library.FAMILIES, ids=lambda family: family.name)
def test_declares_what_the_library_needs(family: Family) -> None:
    assert set(family.depths) <= set(range(1, 6))
    assert family.tools
    assert library.named(family.name) is family
    assert family in library.in_category(family.category)
    assert family in library.using(family.tools[:1])


def test_families_are_sorted_by_name_and_unique() -> None:
    names = [family.name for family in library.FAMILIES]
    assert names == sorted(set(names))


def _draw_in_same_place(family: Family, seed: int, depth: int) -> Piece:
    return family.draw(random.Random(seed), depth, Place(directory="/home/agent/work-0"))


class Broken:
    """A sound family with one thing spoilt."""

    name = "broken"
    category = "data processing"
    tools: tuple[str, ...] = ("awk",)
    depths = range(1, 6)

    def __init__(self, spoil: Callable[[Piece], Piece]) -> None:
        self._spoil = spoil

    def draw(self, rng: random.Random, depth: int, place: Place) -> Piece:
        return self._spoil(csv_filter.draw(rng, depth, place))


def _spoilt(**fields: object) -> Callable[[Piece], Piece]:
    from dataclasses import replace

    return lambda piece: replace(piece, **fields)  # type: ignore[arg-type]


def _harmless_mistake(piece: Piece) -> Piece:
    first = replace_struct(piece.mistakes[0], command=piece.commands[piece.mistakes[0].step])
    return _spoilt(mistakes=(first, *piece.mistakes[1:]))(piece)


def _lasting_mistake(piece: Piece) -> Piece:
    first = replace_struct(
        piece.mistakes[0], command="mkdir -p work && chmod 500 /home/agent/work-3; rm -rf /home/agent/work-3"
    )
    return _spoilt(mistakes=(first, *piece.mistakes[1:]))(piece)


BREAKS: dict[str, tuple[Callable[[Piece], Piece], str]] = {
    "reference": (_spoilt(commands=("true",) * 3), "the reference fails"),
    "no check fails at the start": (
        _spoilt(checks=("def test_x() -> None:\n    assert True\n",)),
        "every check passes on the untouched",
    ),
    "check raises": (
        _spoilt(checks=("def test_x() -> None:\n    open('/home/agent/work-3/none')\n",)),
        "not by assertion",
    ),
    "output is there": (_spoilt(initial_checks=("def test_x() -> None:\n    assert False\n",)), "initial: test_x"),
    "output not named": (_spoilt(asks=("One /home/agent/work-3.", "Two.", "Three.")), "does not state"),
    "truth given away": (_spoilt(truth=("csv (", "The directory")), "truth is given away"),
    "wordings": (_spoilt(asks=("Same.",) * 3), "fewer than three wordings"),
    "set-up": (_spoilt(setup=("false",)), "set-up failed"),
    "harmless mistake": (_harmless_mistake, "a mistake passes"),
    "lasting mistake": (_lasting_mistake, "no way back"),
}


@pytest.mark.namespace
@pytest.mark.parametrize("promise", BREAKS)
def test_broken_promise_is_seen(ground: Ground, promise: str) -> None:
    spoil, symptom = BREAKS[promise]
    assert any(symptom in problem for problem in problems_of(ground, Broken(spoil), 3, 3))


@pytest.mark.namespace
def test_unspoilt_family_has_no_problem(ground: Ground) -> None:
    assert problems_of(ground, Broken(lambda piece: piece), 3, 3) == []
