"""The taxonomy is whole, and draws are functions of their seed."""

from __future__ import annotations

import pytest

from generators.taxonomy import load_taxonomy
from runtime.errors import UserError

TAXONOMY = load_taxonomy()


def test_the_axes_have_the_promised_sizes() -> None:
    names = [category.name for category in TAXONOMY.categories]
    assert len(names) == len(set(names)) == 62
    assert len(set(TAXONOMY.scenarios.names)) == 54
    assert len(TAXONOMY.complexities) == 6
    assert len(TAXONOMY.tiers) == 3
    assert sum(len(tier.areas) for tier in TAXONOMY.tiers) == 11
    assert len(TAXONOMY.tools) == 16


def test_every_reference_inside_the_taxonomy_resolves_and_every_part_is_used() -> None:
    areas = {area for tier in TAXONOMY.tiers for area in tier.areas}
    assert {category.area for category in TAXONOMY.categories} == areas
    assert {group for category in TAXONOMY.categories for group in category.tools} == set(TAXONOMY.tools)
    levels = [level for complexity in TAXONOMY.complexities for level in complexity.levels]
    assert levels == list(range(1, 11))


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    first = [TAXONOMY.draw(7, index) for index in range(50)]
    assert [TAXONOMY.draw(7, index) for index in reversed(range(50))] == first[::-1]
    assert len({blueprint.seed for blueprint in first}) == 50
    assert all(TAXONOMY.draw(8, index).seed != first[index].seed for index in range(50))


def test_draws_reach_every_category_complexity_and_style() -> None:
    drawn = [TAXONOMY.draw(0, index) for index in range(2000)]
    assert len({blueprint.category for blueprint in drawn}) == 62
    assert {blueprint.level for blueprint in drawn} == set(range(1, 11))
    assert {blueprint.style for blueprint in drawn} == set(TAXONOMY.styles.names)
    assert {blueprint.persona for blueprint in drawn} == {persona.name for persona in TAXONOMY.personas}


def test_filters_narrow_one_choice_and_leave_the_others() -> None:
    free = TAXONOMY.draw(3, 5)
    narrow = TAXONOMY.draw(3, 5, categories=("database",), levels=(4,))
    assert (narrow.category, narrow.level, narrow.tier) == ("database", 4, 2)
    assert (narrow.scenario, narrow.style, narrow.seed) == (free.scenario, free.style, free.seed)
    assert narrow.persona == free.persona


def test_unknown_filters_name_the_remedy() -> None:
    with pytest.raises(UserError, match="'databases' is no category"):
        TAXONOMY.draw(0, 0, categories=("databases",))
    with pytest.raises(UserError, match="levels go from 1 to 10"):
        TAXONOMY.draw(0, 0, levels=(11,))
