"""How a run goes on: a live table on a terminal, a line now and then elsewhere, events for programs.

`Tally` counts; it is fed with the runner's events and knows no screen. Everything shown derives from events, so a run
that is dead looks dead: the age of the oldest item and of the last movement only grow.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import msgspec

from runtime.causes import first_cause
from runtime.events import Kind, OnEvent, RunEvent
from runtime.plain_text import printable

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 30.0
REDRAW_EVERY_S = 0.25
RATE_OVER_S = 60.0
_LINES = (Kind.SAID, Kind.STEP)
"""Kinds whose detail is a line for people."""
_TOLD = (Kind.FAULT, Kind.STALLED, Kind.LAG, Kind.DRAINING, *_LINES)
"""Kinds that are worth a line of their own."""


@dataclass
class StageTally:
    """One stage in numbers."""

    ready: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    """Wait out the pause after a failed attempt."""
    working: set[str] = field(default_factory=set)
    passed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """By reason."""
    retried: int = 0
    entered: dict[str, float] = field(default_factory=dict)
    finished: deque[float] = field(default_factory=deque)

    def rate_per_min(self, now: float) -> float:
        """Items that left within the last minute."""
        while self.finished and self.finished[0] < now - RATE_OVER_S:
            self.finished.popleft()
        return len(self.finished) * 60.0 / RATE_OVER_S

    def oldest_s(self, now: float) -> float:
        """Age, in this stage, of the item that has been here longest."""
        return now - next(iter(self.entered.values())) if self.entered else 0.0


class Tally:
    """A run in numbers, from its events. Times are seconds since the epoch, as in the events."""

    def __init__(self, stages: Sequence[str]) -> None:
        self.stages = {name: StageTally() for name in stages}
        self.moved_at = 0.0

    def __call__(self, event: RunEvent) -> None:
        stage = self.stages.get(event.stage)
        if stage is None:
            return
        match event.kind:
            case Kind.QUEUED:
                stage.working.discard(event.item)  # given back by a drain
                stage.ready.add(event.item)
                stage.entered.setdefault(event.item, event.at)
            case Kind.STARTED:
                stage.ready.discard(event.item)
                stage.delayed.discard(event.item)
                stage.working.add(event.item)
            case Kind.RETRY | Kind.FAULT:
                stage.working.discard(event.item)
                stage.ready.discard(event.item)
                stage.delayed.add(event.item)
                stage.retried += 1
            case Kind.DONE:
                self._left(stage, event)
            case Kind.SETTLED if event.detail:
                stage.passed -= 1
                stage.rejected[event.detail] += 1
            case _:
                return
        self.moved_at = event.at

    def _left(self, stage: StageTally, event: RunEvent) -> None:
        stage.working.discard(event.item)
        stage.delayed.discard(event.item)  # given up on the way from one attempt to the next
        stage.entered.pop(event.item, None)
        stage.finished.append(event.at)
        stage.passed += 1

    def rows(self, now: float) -> list[tuple[str, ...]]:
        """stage, ready (pausing ones too), working, passed, rejected, per minute, oldest."""
        return [
            (
                name,
                str(len(stage.ready) + len(stage.delayed)),
                str(len(stage.working)),
                str(stage.passed),
                str(stage.rejected.total()),
                f"{stage.rate_per_min(now):.0f}",
                f"{stage.oldest_s(now):.0f} s" if stage.entered else "",
            )
            for name, stage in self.stages.items()
        ]

    def line(self, now: float) -> str:
        """All of it in one line, for logs."""
        parts = [
            f"{name} {ready}+{working} in, {passed} passed, {rejected} rejected"
            for name, ready, working, passed, rejected, _, _ in self.rows(now)
        ]
        age = f"last movement {now - self.moved_at:.0f} s ago" if self.moved_at else "nothing has moved"
        return f"{'; '.join(parts)}; {age}"


@asynccontextmanager
async def show_progress(
    stages: Sequence[str], *, json: bool = False, screen: TextIO | None = None, output: TextIO | None = None
) -> AsyncIterator[OnEvent]:
    """A listener for a runner's events, which shows them while the block runs.

    Args:
        stages: names of the stages, in the order of the flow.
        json: one JSON object a line on `output` (standard output), nothing on the screen.
        screen: where people look, standard error by default: a live table on a terminal, else lines.
    """
    if json:
        yield _json_lines(output or sys.stdout)
        return
    screen, tally = screen or sys.stderr, Tally(stages)
    show = _live if screen.isatty() else _lines
    try:
        async with show(tally, screen) as listener:
            yield listener
    except BaseExceptionGroup as group:
        raise first_cause(group) from group


def _json_lines(output: TextIO) -> OnEvent:
    encoder = msgspec.json.Encoder()

    def write(event: RunEvent) -> None:
        output.write(encoder.encode(event).decode() + "\n")
        output.flush()

    return write


@asynccontextmanager
async def _lines(tally: Tally, screen: TextIO) -> AsyncIterator[OnEvent]:
    def write(line: str) -> None:
        screen.write(line + "\n")
        screen.flush()

    def listen(event: RunEvent) -> None:
        tally(event)
        if event.kind in _TOLD:
            write(_told(event))

    async with _every(LINE_EVERY_S, lambda: write(tally.line(time.time()))):
        yield listen
    write(tally.line(time.time()))


@asynccontextmanager
async def _live(tally: Tally, screen: TextIO) -> AsyncIterator[OnEvent]:
    from rich.console import Console
    from rich.live import Live

    live = Live(
        console=Console(file=screen), auto_refresh=False, get_renderable=lambda: _table(tally), transient=False
    )  # redrawn by a task of ours: the tally is not for other threads

    def listen(event: RunEvent) -> None:
        tally(event)
        if event.kind in _TOLD:
            live.console.print(_told(event), markup=False, highlight=False)

    with live:
        async with _every(REDRAW_EVERY_S, live.refresh):
            yield listen
        live.refresh()


@asynccontextmanager
async def _every(seconds: float, act: Callable[[], Any]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await anyio.sleep(seconds)
            act()

    async with anyio.create_task_group() as group:
        group.start_soon(repeat)
        yield
        group.cancel_scope.cancel()


def _table(tally: Tally) -> Table:
    return table(("stage", "ready", "working", "passed", "rejected", "per min", "oldest"), tally.rows(time.time()))


def _told(event: RunEvent) -> str:
    if event.kind in _LINES:
        return printable(event.detail)
    where = " ".join(part for part in (event.stage, event.item) if part)
    last = event.detail.strip().rpartition("\n")[2]  # of a traceback: the exception; all of it is in the journal
    return printable(f"{event.kind}{': ' + where if where else ''}: {last}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    """A table for `rich.print`; every column but the first is right-aligned where all its cells are numbers.

    Cells are text: neither markup nor what steers a terminal has an effect.
    """
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=title, box=SIMPLE, title_justify="left")
    for index, column in enumerate(columns):
        numbers = index > 0 and all(row[index][:1].isdigit() or not row[index] for row in rows)
        made.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        made.add_row(*(escape(printable(cell)) for cell in row))
    return made
