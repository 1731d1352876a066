"""What a daemon can be asked to do: one `JobKind` a command, found by the entry point group `termloom.jobs`.

A kind tells how a request is checked, where its run lives and how it is carried out. The daemon gives it the engine and
the limits that all its jobs share. Any package may register one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from runtime.errors import UserError
from runtime.events import OnEvent
from runtime.limits import Limits
from runtime.settings import Settings
from runtime.stage import Stage
from sandbox.engine import Engine

GROUP = "termloom.jobs"
Options = Mapping[str, Any]
"""A kind's own arguments, as JSON; paths are absolute."""


class Drainable(Protocol):
    """What can be asked to take up nothing more and end."""

    def drain(self, reason: str = ...) -> None: ...


class Steered(Drainable, Protocol):
    """What can be steered item by item, as a `Runner` can."""

    @property
    def paused(self) -> bool: ...

    def pause(self) -> None: ...

    def unpause(self) -> None: ...

    def cancel(self, item: str) -> bool: ...

    async def requeue(self, item: str) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Where a job's run reads and writes."""

    run_id: str
    store: Path
    out: Path
    notes: Path | None = None
    """Directory for what the daemon writes about it: stages over time, the log of its process. None: the store's."""

    @property
    def notes_directory(self) -> Path:
        return self.notes or self.store.parent


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """Handed to a kind when its job's turn comes."""

    settings: Settings
    options: Options
    begun: bool
    """The daemon has worked on it before: go on with what is recorded."""
    engine: Engine
    limits: Limits
    stages: tuple[Stage, ...]
    """The kind's stages; where other machines take part, those that travel are sent to them."""
    on_event: OnEvent
    announce: Callable[[Drainable], None]
    """To be called, before the work begins, with what carries it: a runner as a rule."""


@dataclass(frozen=True, kw_only=True)
class Travel:
    """What other machines can do for a kind: their messages must hold all that the work needs."""

    stages: tuple[str, ...]
    """Names of the stages that travel: those that need an engine, as a rule."""
    recorded: Callable[[Any], str]
    """From the context of the stages: the settings that the run goes on with, as another process needs them."""
    worker: Callable[[Settings, str, str, Engine, Limits], AbstractAsyncContextManager[Any]]
    """The context of the stages in another process: settings, run id, `recorded`, engine, limits."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One kind of job."""

    name: str
    stages: tuple[Stage, ...]
    check: Callable[[Settings, Options], None]
    """Refuses what cannot be run, before it is accepted. Raises: UserError."""
    place: Callable[[Settings, Options], JobPlace]
    """Asked before `check` as well: takes options as they come and changes nothing. Raises: UserError."""
    run: Callable[[JobWork], Awaitable[dict[str, Any]]]
    """Carries the job to its end or to a drain; returns the result as JSON. The key `state` is the run's."""
    travel: Travel | None = None
    """None: all of its work is done in the daemon."""
    apart: bool = False
    """Each job in a process of its own: for what computes, and would stop the daemon's loop or take it down."""


@cache
def job_kinds(group: str = GROUP) -> dict[str, JobKind]:
    """Every registered kind by its name."""
    return {kind.name: kind for kind in (point.load() for point in entry_points(group=group))}


def job_kind(name: str) -> JobKind:
    """Raises: UserError for a kind that no installed package registers."""
    kinds = job_kinds()
    if name not in kinds:
        raise UserError("job", f"there is no kind '{name}'", f"There are {', '.join(sorted(kinds))}")
    return kinds[name]
