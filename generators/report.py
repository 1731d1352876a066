"""Results as a person or a program reads them. Each function prints and returns the exit code."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from generators.outdir import RunPlace
from generators.procedural.library import FAMILIES
from generators.quota import filled
from generators.summary import Summary
from generators.taxonomy import Taxonomy, load_taxonomy
from runtime.errors import TaskInvalid
from runtime.plain_text import printable
from runtime.progress import table
from runtime.runner import RunResult
from runtime.settings import Quota
from runtime.task import read_task

_HASH_CHARS = 12
_PLAIN_WIDTH = 160
"""Columns where nobody tells how wide the screen is: nothing is cut off in a log."""


def show_summary(summary: Summary, result: RunResult, place: RunPlace, *, as_json: bool) -> int:
    """The tasks and the yield of a run; 1 when there are fewer tasks than were asked for."""
    if as_json:
        _write_json({"kind": "result", "state": result.state, **msgspec.to_builtins(summary)})
    else:
        rows = [
            (t.directory, t.category, t.difficulty, f"{t.pass_rate:.0%}", t.task_hash[:_HASH_CHARS])
            for t in summary.tasks
        ]
        _print(("task", "category", "difficulty", "pass rate", "certificate"), rows)
        _print(("stage", "taken", "passed", "rejected, by reason"), _yield_rows(summary))
        _write_line(_verdict(summary, result, place))
    return 0 if len(summary.tasks) >= summary.wanted else 1


def show_verification(problems: Mapping[Path, Sequence[str]], *, as_json: bool) -> int:
    """What differs, by directory; 1 when anything does."""
    bad = sum(bool(found) for found in problems.values())
    if as_json:
        _write_json({"kind": "result", "tasks": {str(path): list(found) for path, found in problems.items()}})
        return 1 if bad else 0
    for path, found in problems.items():
        _write_line(f"{path}: {'holds' if not found else '; '.join(_one_line(found))}")
    _write_line(f"{len(problems) - bad} of {len(problems)} tasks hold")
    return 1 if bad else 0


def show_taxonomy(tasks: Path | None, quotas: Sequence[Quota], *, as_json: bool) -> int:
    """The axes, and with a folder of tasks how many there are of each category and quota.

    1 when a task cannot be read or a quota is not filled.
    """
    taxonomy = load_taxonomy()
    found, unreadable = _metadata(tasks) if tasks else ([], [])
    counts = Counter(str(metadata.get("category", "(none)")) for metadata in found)
    coverage = filled(quotas, found)
    code = 1 if unreadable or (tasks and any(there < wanted for _, wanted, there in coverage)) else 0
    if as_json:
        against = [{"cell": cell, "wanted": wanted, "tasks": there} for cell, wanted, there in coverage]
        families = [{"name": f.name, "category": f.category, "levels": list(f.depths)} for f in FAMILIES]
        shown = {
            **msgspec.to_builtins(taxonomy),
            "families": families,
            "tasks": dict(sorted(counts.items())),
            "quotas": against,
        }
        _write_json({"kind": "result", **shown})
        return code
    rows = [
        (c.name, c.area, str(taxonomy.tier_of(c.area)), ", ".join(c.tools), str(counts[c.name]) if tasks else "")
        for c in taxonomy.categories
    ]
    _print(("category", "area", "tier", "tool groups", "tasks"), rows)
    _print(("family", "category", "levels"), [(f.name, f.category, _span(f.depths)) for f in FAMILIES])
    _print(("complexity", "levels"), [(c.name, ", ".join(map(str, c.levels))) for c in taxonomy.complexities])
    if quotas:
        cells = [(cell, str(wanted), str(there) if tasks else "") for cell, wanted, there in coverage]
        _print(("quota", "wanted", "tasks"), cells)
    _write_line(_sizes(taxonomy))
    if tasks:
        covered = sum(counts[category.name] > 0 for category in taxonomy.categories)
        _write_line(f"{counts.total()} tasks cover {covered} of {len(taxonomy.categories)} categories")
    for line in unreadable:
        _write_line(line)
    return code


def _span(levels: range) -> str:
    return str(levels[0]) if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"


def _yield_rows(summary: Summary) -> list[tuple[str, ...]]:
    return [
        (
            stage.stage,
            str(stage.taken),
            str(stage.passed),
            ", ".join(f"{count} {reason}" for reason, count in stage.rejected.items()),
        )
        for stage in summary.stages
    ]


def _verdict(summary: Summary, result: RunResult, place: RunPlace) -> str:
    got = f"{len(summary.tasks)} of {summary.wanted} tasks certified in {place.out}"
    if result.state == "drained":
        return f"{got}; stopped before the end ({result.reason}): go on with --resume --out {place.out}"
    return got


def _metadata(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The metadata of each task of a folder, and what speaks against those that cannot be read."""
    found, unreadable = list[dict[str, Any]](), list[str]()
    for directory in sorted(path.parent for path in folder.glob("*/task.toml")):
        try:
            found.append(dict(read_task(directory).config.metadata))
        except TaskInvalid as invalid:
            unreadable.append(str(invalid))
    return found, unreadable


def _sizes(taxonomy: Taxonomy) -> str:
    return (
        f"{len(taxonomy.categories)} categories, {len(taxonomy.complexities)} complexities, "
        f"{len(taxonomy.scenarios.names)} scenarios, {len(taxonomy.tiers)} tiers, "
        f"{sum(len(tier.areas) for tier in taxonomy.tiers)} areas, {len(taxonomy.tools)} tool groups"
    )


def _one_line(texts: Iterable[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    Console(width=width).print(table(columns, rows))


def _write_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def _write_line(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
