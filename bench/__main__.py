"""`python -m bench sessions --engine namespace --counts 1,100,1000`, `python -m bench asynchrony`, and others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

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
    docker_url: Sequence[str] = (),
) -> None:
    """Sessions open at once: memory, idle CPU, latency of a command.

    Args:
        engine: Where the sandboxes are.
        counts: How many sessions, one row for each.
        idle_s: How long nothing is asked of them, to see what they cost then.
        docker_url: A Docker engine; said again, another that takes its share of the sessions.
    """
    from bench.sessions import measure

    run = partial(measure, engine, [int(part) for part in counts.split(",")], urls=docker_url or (None,))
    anyio.run(partial(run, cache=default_cache(os.environ), state=_state(), idle_s=idle_s))


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


@app.command
def bus(*, messages: int = 50_000, nats_messages: int = 5_000, pairs: str = "1,16,64", nats: str = "") -> None:
    """Both buses: rate and round trip against a bare stream and a bare JetStream."""
    from bench.bus import measure

    wanted = [int(part) for part in pairs.split(",")]
    anyio.run(partial(measure, messages=messages, nats_messages=nats_messages, pairs=wanted, url=nats))


@app.command
def soak(
    *,
    minutes: float = 30.0,
    items: int = 50_000,
    bus: Literal["memory", "nats"] = "memory",
    seed: int = 0,
    nats: str = "",
) -> None:
    """Items through five stages with faults on the way: memory, descriptors, loop lag, nothing lost."""
    from bench.soak import measure

    anyio.run(
        partial(measure, bus=bus, items=items, minutes=minutes, seed=seed, cache=default_cache(os.environ), url=nats)
    )


@app.command
def workers(
    *,
    workers: int = 2,
    messages: int = 2_000,
    slots: int = 16,
    wait_s: Annotated[float, Parameter(name="--wait-s")] = 0.1,
) -> None:
    """One queue, one to so many worker processes, each in a network namespace of its own."""
    from bench.workers import measure

    anyio.run(partial(measure, workers=workers, messages=messages, slots=slots, wait_s=wait_s))


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
