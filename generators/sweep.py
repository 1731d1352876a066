"""Certify every task family on real sandboxes: so many seeds of each, over all its depths, and a table by family.

    python -m generators.sweep --engine namespace --seeds 20 --state DIR

Each task passes the stages of generation from draft to certificate. The solver plays the reference and makes no
mistakes, so that one attempt is one of the certificate's runs. A sweep that was stopped goes on where it was when it is
given the same state directory and the same numbers.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
from cyclopts import App, Parameter
from msgspec.structs import replace

from generators.context import GenerationContext, Players
from generators.messages import Blueprint, Certified, Sampled
from generators.procedural.family import Family
from generators.procedural.library import BASICS, FAMILIES, named
from generators.procedural.players import procedural_cast
from generators.stages import STAGES
from generators.taxonomy import load_taxonomy
from runtime.bus import MemoryBus
from runtime.engines import open_settings_engine
from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.interrupts import interrupts
from runtime.limits import Limits
from runtime.plain_text import printable
from runtime.progress import show_progress, table
from runtime.routes import Routes
from runtime.runner import Runner
from runtime.settings import GenerateSettings, Settings, load_settings
from runtime.source import Once
from runtime.stage import Message, Rejected
from runtime.store import Store
from sandbox.engine import Engine
from sandbox.open import Choice

RUN = "sweep"
PIPELINE = STAGES[:-1]
"""Draft to certify: nothing is published."""
SETTINGS = GenerateSettings(attempts=1, attempts_least=1, certificate_repeats=2)

app = App(name="generators.sweep", help="Certify every task family on real sandboxes.")


class FamilyYield(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one family's seeds."""

    family: str
    certified: int
    rejected: dict[str, int]
    """Count by `stage: reason`."""
    failures: tuple[str, ...]
    """Item, reason and detail of each rejection."""


def blueprints(families: Sequence[Family], seeds: int) -> list[tuple[str, Blueprint]]:
    """Item name and blueprint: the seeds of a family have its depths and the styles in turn; basics are `terse`."""
    taxonomy = load_taxonomy()
    return [
        (f"{family.name}-{seed:03d}", _blueprint(family, seed, taxonomy.styles.names))
        for seed in range(seeds)
        for family in families
    ]


def _blueprint(family: Family, seed: int, styles: Sequence[str]) -> Blueprint:
    drawn = load_taxonomy().draw(
        seed,
        0,
        categories=[family.category],
        levels=[family.depths[seed % len(family.depths)]],
        style="terse" if family in BASICS else styles[seed % len(styles)],
        families=(family.name,),
    )
    return replace(drawn, index=seed)


async def sweep(
    items: Sequence[tuple[str, Blueprint]], *, engine: Engine, store: Store, settings: Settings, on_event: OnEvent
) -> list[Message]:
    """Carry every item to its certificate or its rejection; the terminal messages."""
    limits = Limits(settings.limits.sizes())
    with tempfile.TemporaryDirectory() as nowhere:
        context = GenerationContext(
            engine=engine,
            limits=limits,
            players=Players(cast=procedural_cast(slip_rate=0), name="procedural"),
            settings=SETTINGS,
            run_id=RUN,
            seed=0,
            out=Path(nowhere),
        )
        await store.open_run(RUN, command=RUN, settings=SETTINGS.model_dump_json())
        async with MemoryBus() as bus:
            runner = Runner(
                stages=PIPELINE,
                bus=bus,
                store=store,
                context=context,
                run_id=RUN,
                source=Once([Sampled(item=item, run_id=RUN, blueprint=blueprint) for item, blueprint in items]),
                on_event=on_event,
                limits=limits,
            )
            with interrupts(cleanup=f"termloom gc --run {RUN}") as stop:
                stop.on_drain(runner.drain)
                try:
                    await runner.run()
                finally:
                    await context.images.release_all(engine)
    routes = Routes(PIPELINE)
    return [routes.decode(entry.body) for entry in await store.terminal(RUN)]


def by_family(families: Iterable[Family], ends: Iterable[Message]) -> list[FamilyYield]:
    """The ends of all items, counted by family."""
    ended: Mapping[str, list[Message]] = defaultdict(list)
    for message in ends:
        ended[message.item.rpartition("-")[0]].append(message)
    return [_yield(family.name, ended[family.name]) for family in families]


def _yield(name: str, ends: Sequence[Message]) -> FamilyYield:
    rejected = [message for message in ends if isinstance(message, Rejected)]
    return FamilyYield(
        family=name,
        certified=sum(isinstance(message, Certified) for message in ends),
        rejected=dict(Counter(f"{message.stage}: {message.reason}" for message in rejected)),
        failures=tuple(f"{message.item}: {message.reason}: {message.detail}" for message in rejected),
    )


def show(yields: Sequence[FamilyYield], *, seeds: int) -> int:
    """The table; 1 when not every task is certified."""
    from rich.console import Console

    rows = [
        (y.family, str(y.certified), ", ".join(f"{count} {reason}" for reason, count in y.rejected.items()))
        for y in yields
    ]
    Console(width=None if sys.stdout.isatty() else 160).print(table(("family", "certified", "rejected"), rows))
    certified, failures = sum(y.certified for y in yields), [failure for y in yields for failure in y.failures]
    left = seeds * len(yields) - certified - len(failures)
    lines = [*failures, f"{certified} tasks of {len(yields)} families certified, {len(failures)} rejected, {left} left"]
    sys.stdout.write(printable("\n".join(lines)) + "\n")
    return 1 if failures or left else 0


@app.default
async def main(
    *,
    engine: Choice = "auto",
    seeds: int = 20,
    family: Annotated[list[str] | None, Parameter(negative="")] = None,
    state: Path | None = None,
    sets: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
) -> int:
    """Certify every family.

    Args:
        engine: Which engine runs the sandboxes.
        seeds: Tasks a family.
        family: Only this family; may be repeated.
        state: Where the sweep's state lies, to go on after a stop; a temporary directory by default.
        sets: One setting, as section.key=value; may be repeated.
    """
    families = [_named(name) for name in family] if family else list(FAMILIES)
    with _state(state) as place:
        settings = load_settings(sets=[*(sets or ()), f"paths.state={place}", f"sandbox.engine={engine}"])
        async with (
            open_settings_engine(settings, say) as opened,
            Store(place / "sweep.sqlite") as store,
            show_progress([stage.name for stage in PIPELINE]) as on_event,
        ):
            ends = await sweep(
                blueprints(families, seeds), engine=opened, store=store, settings=settings, on_event=on_event
            )
    return show(by_family(families, ends), seeds=seeds)


def _named(name: str) -> Family:
    try:
        return named(name)
    except KeyError:
        raise UserError(
            "--family", f"no task family is called {name!r}", f"There are {', '.join(f.name for f in FAMILIES)}"
        ) from None


@contextmanager
def _state(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="termloom-sweep-") as fresh:
        yield Path(fresh)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def run() -> None:
    """Run the command; a user's mistake is one line."""
    try:
        sys.exit(anyio.run(app.run_async))
    except UserError as error:
        sys.exit(f"generators.sweep: {error}")


if __name__ == "__main__":
    run()
