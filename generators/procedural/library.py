"""The families there are, and how to find one.

A family is a module: its name, category, tools, depths and `draw` are module attributes. Adding one is a line here.
"""

from __future__ import annotations

from collections.abc import Iterable

from generators.procedural.families import (
    archives,
    awk_report,
    checksums,
    csv_filter,
    find_and_act,
    json_query,
    links_and_trees,
    log_analysis,
    permissions,
    sed_edit,
    text_columns,
)
from generators.procedural.family import Family

FAMILIES: tuple[Family, ...] = (
    archives,
    awk_report,
    checksums,
    csv_filter,
    find_and_act,
    json_query,
    links_and_trees,
    log_analysis,
    permissions,
    sed_edit,
    text_columns,
)
"""Sorted by name, so that what a seed draws does not depend on the order in which families were added to this file."""

CATEGORIES: tuple[str, ...] = tuple(sorted({family.category for family in FAMILIES}))
"""The categories that can be drawn without a model."""


def named(name: str) -> Family:
    """The family of this name. Raises: KeyError."""
    return {family.name: family for family in FAMILIES}[name]


def in_category(category: str) -> tuple[Family, ...]:
    """The families of a category, perhaps none."""
    return tuple(family for family in FAMILIES if family.category == category)


def using(tools: Iterable[str]) -> tuple[Family, ...]:
    """The families whose reference uses one of these programs."""
    wanted = set(tools)
    return tuple(family for family in FAMILIES if wanted & set(family.tools))
