"""Quotas: how many tasks of which cell of the taxonomy a set is to hold.

    [[generate.quotas]]
    category = "database"
    complexity = "one command"
    count = 5

Each cell has its own sequence of candidates, drawn from a seed of its own, and its own bound; what the quotas leave of
`count` is drawn freely. A task belongs to every cell whose category, complexity, tier and family are its own.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from generators.taxonomy import Taxonomy, derive_seed
from runtime.errors import UserError
from runtime.settings import Quota


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Where candidates are drawn, and how many tasks are wanted from there."""

    label: str
    """Part of the items' names: `q1`, `q2`, ...; empty for what is drawn freely."""
    wanted: int
    bound: int
    """Candidates at most."""
    seed: int
    categories: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    families: tuple[str, ...] = ()
    """Task families; empty: those that the run draws from."""


class QuotaFile(BaseModel):
    """A TOML file of `[[quotas]]` tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quotas: tuple[Quota, ...]


def load_quotas(path: Path) -> tuple[Quota, ...]:
    """Read a quota file. Raises: UserError."""
    remedy = "Write [[quotas]] tables with count and any of category, complexity, tier, family"
    try:
        return QuotaFile.model_validate(tomllib.loads(path.read_text("utf-8"))).quotas
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), "Give a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"not TOML: {error}", remedy) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {key}", f"{first['input']!r} is refused: {first['msg']}", remedy) from None


def cells(
    taxonomy: Taxonomy,
    quotas: Sequence[Quota],
    *,
    seed: int,
    count: int,
    candidates_per_task: int,
    categories: Collection[str],
    levels: Collection[int],
    families: Mapping[str, str],
) -> list[Cell]:
    """The cells of a run: one for each quota, and one for what they leave of `count`.

    Args:
        categories, levels: what may be drawn at all; empty: everything.
        families: the category of each task family that a quota may name; empty where an endpoint is the author.

    Raises: UserError for a quota that cannot be filled.
    """
    left = count - sum(quota.count for quota in quotas)
    if left < 0:
        asked = count - left
        raise UserError("generate.quotas", f"ask for {asked} tasks, and count is {count}", f"Give --count {asked}")
    if twice := [named for named, times in Counter(map(name, quotas)).items() if times > 1]:
        raise UserError("generate.quotas", f"name a cell twice: {twice[0]}", "Give each cell one quota")
    drawn = [
        Cell(
            label=f"q{number}",
            wanted=quota.count,
            bound=quota.count * candidates_per_task,
            seed=derive_seed(seed, "quota", *_cell(quota)),
            categories=_categories(taxonomy, quota, categories, families),
            levels=_levels(taxonomy, quota, levels),
            families=(quota.family,) if quota.family else (),
        )
        for number, quota in enumerate(quotas, start=1)
    ]
    free = Cell(
        label="",
        wanted=left,
        bound=left * candidates_per_task,
        seed=seed,
        categories=tuple(categories),
        levels=tuple(levels),
    )
    return [*drawn, free] if left else drawn


def _cell(quota: Quota) -> tuple[str | int, ...]:
    place = (quota.category, quota.complexity, quota.tier)
    return (*place, quota.family) if quota.family else place


def _categories(
    taxonomy: Taxonomy, quota: Quota, allowed: Collection[str], families: Mapping[str, str]
) -> tuple[str, ...]:
    known = {category.name for category in taxonomy.categories}
    if quota.family and quota.family not in families:
        remedy = f"There are {', '.join(families)}" if families else "Leave out --author chat"
        raise _unfillable(quota, f"{quota.family!r} is no task family that is drawn", remedy)
    if quota.category and quota.category not in known:
        raise _unfillable(quota, f"{quota.category!r} is no category", "`termloom taxonomy` lists them")
    fitting = tuple(
        category.name
        for category in taxonomy.categories
        if quota.category in ("", category.name)
        and families.get(quota.family, category.name) == category.name
        and quota.tier in (0, taxonomy.tier_of(category.area))
        and (not allowed or category.name in allowed)
    )
    if not fitting:
        raise _unfillable(quota, "no category that is drawn lies in this cell", "Widen the cell, or the categories")
    return fitting


def _levels(taxonomy: Taxonomy, quota: Quota, allowed: Collection[int]) -> tuple[int, ...]:
    named = [complexity for complexity in taxonomy.complexities if quota.complexity in ("", complexity.name)]
    if not named:
        names = ", ".join(repr(complexity.name) for complexity in taxonomy.complexities)
        raise _unfillable(quota, f"{quota.complexity!r} is no complexity", f"There are {names}")
    fitting = tuple(level for complexity in named for level in complexity.levels if not allowed or level in allowed)
    if not fitting:
        raise _unfillable(quota, "no level that is drawn lies in this cell", "Widen the cell, or the levels")
    return fitting


def _unfillable(quota: Quota, problem: str, remedy: str) -> UserError:
    return UserError(f"generate.quotas ({name(quota)})", problem, remedy)


def name(quota: Quota) -> str:
    """The cell in words."""
    tier = f"tier {quota.tier}" if quota.tier else ""
    return ", ".join(filter(None, (quota.category, quota.complexity, tier, quota.family))) or "any task"


def filled(quotas: Iterable[Quota], tasks: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Cell, tasks wanted and tasks there; a task's metadata tell where it lies."""
    found = list(tasks)
    return [(name(quota), quota.count, sum(_lies_in(quota, metadata) for metadata in found)) for quota in quotas]


def _lies_in(quota: Quota, metadata: dict[str, Any]) -> bool:
    ours = metadata.get("termloom")
    drawn = ours if isinstance(ours, dict) else {}
    return (
        quota.category in ("", drawn.get("drawn_category"), metadata.get("category"))
        and quota.complexity in ("", drawn.get("complexity"))
        and quota.tier in (0, drawn.get("tier"))
        and (not quota.family or drawn.get("families") == [quota.family])
    )
