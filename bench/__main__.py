"""`python -m bench sessions --engine namespace --counts 1,100,1000`"""

from __future__ import annotations

import os
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
) -> None:
    """Sessions open at once: memory, idle CPU, latency of a command."""
    from bench.sessions import measure

    state = Path(os.environ.get("TERMLOOM_STATE", "/tmp/termloom-bench"))
    wanted = [int(part) for part in counts.split(",")]
    anyio.run(partial(measure, engine, wanted, cache=default_cache(os.environ), state=state, idle_s=idle_s))


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


if __name__ == "__main__":
    app()
