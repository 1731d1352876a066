"""What tasks are about: categories, complexities, scenarios, tools, personas; and the seeded draw of one blueprint.

Invariants:
- A draw depends on (seed, index, filters, taxonomy version) alone: no draw sees another one.
- Each of the draw's choices has its own random stream, so that a filter on one does not change the others.
"""

from __future__ import annotations

import functools
import hashlib
import random
import tomllib
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import TypeVar

import msgspec

from generators.messages import Blueprint
from runtime.errors import UserError

Choice = TypeVar("Choice")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the taxonomy's tables."""


class Tier(Entry, frozen=True, kw_only=True):
    number: int
    name: str
    areas: tuple[str, ...]


class Complexity(Entry, frozen=True, kw_only=True):
    name: str
    levels: tuple[int, ...]


class Category(Entry, frozen=True, kw_only=True):
    name: str
    area: str
    tools: tuple[str, ...]
    """Tool groups."""


class Names(Entry, frozen=True, kw_only=True):
    names: tuple[str, ...]


class Persona(Entry, frozen=True, kw_only=True):
    """Who asks, by the way they write."""

    name: str
    voice: str
    closings: tuple[str, ...]


class Taxonomy(Entry, frozen=True, kw_only=True):
    version: int
    tiers: tuple[Tier, ...]
    complexities: tuple[Complexity, ...]
    tools: dict[str, tuple[str, ...]]
    categories: tuple[Category, ...]
    scenarios: Names
    styles: Names
    personas: tuple[Persona, ...]

    def persona(self, name: str) -> Persona:
        return next(persona for persona in self.personas if persona.name == name)

    def tier_of(self, area: str) -> int:
        return next(tier.number for tier in self.tiers if area in tier.areas)

    def complexity_of(self, level: int) -> str:
        return next(complexity.name for complexity in self.complexities if level in complexity.levels)

    def draw(
        self,
        seed: int,
        index: int,
        *,
        categories: Collection[str] = (),
        levels: Collection[int] = (),
        style: str = "",
        families: tuple[str, ...] = (),
    ) -> Blueprint:
        """Draw the blueprint of item `index` below `seed`; the rest as in `draw_item`."""
        return self.draw_item(
            derive_seed(seed, index), index, categories=categories, levels=levels, style=style, families=families
        )

    def draw_item(
        self,
        item_seed: int,
        index: int,
        *,
        categories: Collection[str] = (),
        levels: Collection[int] = (),
        style: str = "",
        families: tuple[str, ...] = (),
    ) -> Blueprint:
        """Draw the blueprint of the item with this seed. Empty filters mean all; complexities are equally likely.

        Raises: UserError for a category, level or style that does not exist.
        """
        category = _pick(item_seed, "category", self._wanted_categories(categories))
        complexity = _pick(item_seed, "complexity", self._wanted_complexities(levels))
        allowed = [level for level in complexity.levels if not levels or level in levels]
        tools = [tool for group in category.tools for tool in self.tools[group]]
        return Blueprint(
            index=index,
            seed=item_seed,
            category=category.name,
            complexity=complexity.name,
            scenario=_pick(item_seed, "scenario", self.scenarios.names),
            tier=self.tier_of(category.area),
            tools=tuple(sorted(_stream(item_seed, "tools").sample(tools, min(3, len(tools))))),
            level=_pick(item_seed, "level", allowed),
            style=style or _pick(item_seed, "style", self.styles.names),
            families=families,
            persona=_pick(item_seed, "persona", self.personas).name,
        )

    def _wanted_categories(self, names: Collection[str]) -> list[Category]:
        known = {category.name for category in self.categories}
        if unknown := sorted(set(names) - known):
            raise UserError("--category", f"{unknown[0]!r} is no category", "`termloom taxonomy` lists them")
        return [category for category in self.categories if not names or category.name in names]

    def _wanted_complexities(self, levels: Collection[int]) -> list[Complexity]:
        known = {level for complexity in self.complexities for level in complexity.levels}
        if unknown := sorted(set(levels) - known):
            raise UserError("--level", f"{unknown[0]} is no level", f"levels go from {min(known)} to {max(known)}")
        return [complexity for complexity in self.complexities if not levels or set(levels) & set(complexity.levels)]


@functools.cache
def load_taxonomy() -> Taxonomy:
    """The taxonomy that ships with the package."""
    text = files("generators").joinpath("taxonomy.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Taxonomy)


def derive_seed(seed: int, *parts: int | str) -> int:
    """A 63-bit seed of its own for each path below `seed`."""
    path = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") >> 1


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(derive_seed(seed, name))


def _pick(seed: int, name: str, choices: Sequence[Choice]) -> Choice:
    return _stream(seed, name).choice(choices)
