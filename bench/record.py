"""What a measurement leaves behind: a table on the screen and a JSON file with the machine it was made on."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = Path("runs/bench")


def machine() -> dict[str, Any]:
    """The machine, and how busy it was with other things when it was asked."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(": ")[2] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.split()[1]) / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def keep(name: str, rows: Sequence[Mapping[str, Any]], *, directory: Path = DIRECTORY, **about: Any) -> Path:
    """Print the rows and write them, with the machine and what else is said about them."""
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, load {here['load'][0]}")
    print(table(rows))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps({"bench": name, "machine": here, **about, "rows": list(rows)}, indent=1) + "\n")
    print(f"kept in {path}", flush=True)
    return path


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns in the order of the first row's keys, right-aligned."""
    if not rows:
        return ""
    lines = [[str(key) for key in rows[0]], *[[_shown(row[key]) for key in rows[0]] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p50, p95 and p99: the smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99))
    return p50, p95, p99


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
