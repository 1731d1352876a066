"""`python -m bench sessions --engine namespace --counts 1,100,1000`"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import App, Parameter

from sandbox.basebuild import default_cache
from sandbox.open import Choice

app = App(name="bench", help="Measurements against floors in the same run.")


@app.command
def sessions(
    *,
    engine: Choice = "namespace",
    counts: str = "1,100,1000",
    idle_s: Annotated[float, Parameter(name="--idle-s")] = 20.0,
) -> None:
    """Sessions open at once: memory, idle CPU, latency of a command."""
    from bench.sessions import measure

    state = Path(os.environ.get("TERMLOOM_STATE", "/tmp/termloom-bench"))
    wanted = [int(part) for part in counts.split(",")]
    anyio.run(partial(measure, engine, wanted, cache=default_cache(os.environ), state=state, idle_s=idle_s))


@app.command
def endpoint(*, tasks: int = 200, share: float = 0.2, seed: int = 0, folder: Path | None = None) -> None:
    """Generation against an endpoint that misbehaves, killed in the middle: nothing is lost, nothing paid twice.

    Args:
        tasks: Candidates admitted.
        share: Calls that misbehave.
        seed: Of the misbehaviour and the latencies.
        folder: Where output and state go; a temporary directory by default.
    """
    from bench.endpoint import measure

    with tempfile.TemporaryDirectory(prefix="termloom-bench-") as fresh:
        anyio.run(partial(measure, folder or Path(fresh), tasks=tasks, share=share, seed=seed))


@app.command
def pipeline(*, tasks: int = 100, concurrency: int = 16, scale: float = 0.1, seed: int = 0) -> None:
    """Generation with drawn model latencies: makespan against the bound, and against whole batches.

    Args:
        tasks: How many; the fewer, the more the end of the run weighs.
        concurrency: Model calls at once.
        scale: Latencies are this much shorter than the real ones.
        seed: Of tasks and latencies.
    """
    from bench.pipeline import measure

    anyio.run(partial(measure, tasks=tasks, concurrency=concurrency, scale=scale, seed=seed))


if __name__ == "__main__":
    app()
