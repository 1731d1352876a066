"""`python -m bench sessions --engine namespace --counts 1,100,1000`, `python -m bench asynchrony`, and others."""

from __future__ import annotations

import os
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

    wanted = [int(part) for part in counts.split(",")]
    anyio.run(partial(measure, engine, wanted, cache=default_cache(os.environ), state=_state(), idle_s=idle_s))


@app.command
def asynchrony(*, engine: Choice = "namespace", samples: int = 256) -> None:
    """Asynchronous against synchronous training on the same episodes: samples a second, learner idle."""
    from bench.asynchrony import Times, measure

    anyio.run(partial(measure, engine, Times(samples=samples), cache=default_cache(os.environ), state=_state()))


@app.command
def staleness(*, lag: int = 2, updates: int = 80, learning_rate: float = 1e-3, seeds: int = 5) -> None:
    """Learning curves with fresh and with stale batches, with and without the decoupled objective."""
    from bench.staleness import measure

    measure(lag=lag, updates=updates, learning_rate=learning_rate, seeds=range(seeds))


@app.command
def robustness(*, engine: Choice = "namespace", seeds: int = 3, demonstrations: int = 8000, tasks: int = 40) -> None:
    """Fine-tuning on planted mistakes and repairs against clean runs: recovery where the first command fails."""
    from bench.robustness import measure

    run = partial(measure, engine, seeds=range(seeds), demonstrations=demonstrations, tasks=tasks)
    anyio.run(partial(run, cache=default_cache(os.environ), state=_state()))


def _state() -> Path:
    return Path(os.environ.get("TERMLOOM_STATE", "/tmp/termloom-bench"))


if __name__ == "__main__":
    app()
