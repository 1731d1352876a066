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


if __name__ == "__main__":
    app()
