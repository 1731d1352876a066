"""The basics: terse tasks are short, of a small vocabulary, and made of nothing else."""

from __future__ import annotations

import re

import pytest

from generators.procedural.compose import compose
from generators.procedural.families.basics import NAMES, SUFFIXES, TERSE_PLACES
from generators.procedural.library import BASICS, FAMILIES, SERVICES
from generators.run import candidate_source
from generators.taxonomy import load_taxonomy
from runtime.errors import UserError
from runtime.settings import GenerateSettings


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("family", BASICS, ids=lambda family: family.name)
def test_a_terse_task_is_one_short_sentence_a_job_over_the_small_pool(family, level) -> None:
    for index in range(20):
        draw = load_taxonomy().draw(
            0, index, categories=[family.category], levels=[level], style="terse", families=(family.name,)
        )
        task = compose(draw)
        assert [piece.family for piece in task.pieces] == [family.name]
        assert len(task.reference.commands) == level
        assert len(task.draft.instruction.split()) <= 8 * level
        for directory, name in re.findall(r"(/home/agent/\w+)/(\w+)", task.draft.instruction):
            assert directory in TERSE_PLACES
            assert name in NAMES
        assert set(re.findall(r"\.\w+", task.draft.instruction)) <= set(SUFFIXES)


def test_terse_tasks_are_made_of_basics_and_other_tasks_of_all_others() -> None:
    basics = {family.name for family in BASICS}
    for index in range(60):
        for style, wanted in (
            ("terse", basics),
            ("", {family.name for family in FAMILIES if family not in SERVICES} - basics),
        ):
            draw = load_taxonomy().draw(2, index, categories=["text processing"], levels=[1, 3, 6, 10], style=style)
            assert {piece.family for piece in compose(draw).pieces} <= wanted


def test_a_named_family_is_used_and_its_category_is_drawn() -> None:
    settings = GenerateSettings(families=("basics-move",), style="brief", count=5, levels=(2,))
    for message in candidate_source(settings, "r").start():
        assert [piece.family for piece in compose(message.blueprint).pieces] == ["basics-move"]
        assert message.blueprint.style == "brief"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"families": ("basics-moove",)}, "no task family is called 'basics-moove'"),
        ({"families": ("basics-move",), "categories": ("database",)}, "no task family makes 'database'"),
        ({"families": ("basics-move",), "author": "chat"}, "only the procedural author"),
    ],
)
def test_filters_that_cannot_be_met_are_refused(fields, told) -> None:
    with pytest.raises(UserError, match=told):
        candidate_source(GenerateSettings(**fields), "r")
