"""`metrics.jsonl` of a run: one line of numbers now and then, for curves and for whoever looks later.

Each line holds `at` (seconds since the epoch) and dotted names with their values: `solve.passed`, `solve.rejected`, ...
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from runtime.progress import Tally

EVERY_S = 10.0


@asynccontextmanager
async def metrics_lines(path: Path, tally: Tally, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Append lines while the block runs, one at its beginning and one at its end."""

    async def write() -> None:
        await anyio.to_thread.run_sync(_append, path, json.dumps({"at": round(time.time(), 3), **numbers(tally)}))

    async def repeat() -> None:
        while True:
            await anyio.sleep(every_s)
            await write()

    await write()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(repeat)
            yield
            group.cancel_scope.cancel()
    finally:  # the group has ended: no line is being written
        with anyio.CancelScope(shield=True):
            await write()


def numbers(tally: Tally) -> dict[str, float]:
    """A run's stages as flat numbers."""
    found: dict[str, float] = {}
    for name, stage in tally.stages.items():
        found |= {
            f"{name}.ready": len(stage.ready),
            f"{name}.delayed": len(stage.delayed),
            f"{name}.working": len(stage.working),
            f"{name}.passed": stage.passed,
            f"{name}.rejected": stage.rejected.total(),
            f"{name}.retried": stage.retried,
        }
    return found


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
