"""What a daemon can say of itself: plain data for `ctl`, the dashboard and the metrics, made anew each time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from runtime.bus.protocol import QueueState
from runtime.chat.tally import CallTally
from runtime.daemon.jobs import Jobs
from runtime.daemon.kind import job_kind, job_kinds
from runtime.daemon.live import LiveJob
from runtime.daemon.records import Job
from runtime.errors import BusClosed, BusSilent, UserError
from runtime.limits import Limits, LimitState
from runtime.store import DeadLetter, Note, Store
from runtime.watchdog import LagGauge
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.spec import SandboxRecord


class StageState(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one job."""

    stage: str
    subscribes: str
    ready: int = 0
    delayed: int = 0
    """Wait out the pause after a failed attempt."""
    working: int = 0
    passed: int = 0
    rejected: dict[str, int] = {}
    retried: int = 0
    per_min: float = 0.0
    oldest_s: float = 0.0


class CallState(msgspec.Struct, frozen=True, kw_only=True):
    """Model calls of one job since this daemon took it up, try by try."""

    tries: int
    answered: int
    told_to_slow_down: int
    """Status 429."""
    failed: int
    per_min: float
    p50_s: float
    p95_s: float


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """One job, with its stages when it is or was in work here."""

    job: Job
    paused: bool = False
    still_s: float = 0.0
    """Since its last movement, while it is in work."""
    stages: tuple[StageState, ...] = ()
    calls: CallState | None = None
    numbers: dict[str, float] = {}
    """Of the newest training step, where there is one."""

    @property
    def rejected(self) -> int:
        return sum(sum(stage.rejected.values()) for stage in self.stages)


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Model calls of one run, from its ledger."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    budget_tokens: int | None = None
    budget_cost: float | None = None


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    version: str
    engine: str
    draining: bool
    up_s: float
    lag_p50_s: float
    lag_p99_s: float
    jobs: tuple[JobState, ...]
    limits: tuple[LimitState, ...]
    sandboxes: tuple[SandboxRecord, ...]
    sandboxes_unknown: str = ""
    """Why the engine could not say which there are."""
    queues: tuple[QueueState, ...] = ()
    """Of the bus between machines, where there is one."""
    queues_unknown: str = ""
    """Why the bus could not say what they hold."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item is."""

    job: str
    item: str
    place: str
    """`waits in QUEUE`, `in work at STAGE`, `ended in QUEUE`."""
    for_s: float
    attempts: int
    waits_for: tuple[str, ...]
    journal: tuple[Note, ...]


Queues = Callable[[], Awaitable[Sequence[QueueState]]]


class Reporter:
    """Reads the parts of a daemon."""

    def __init__(self, jobs: Jobs, *, engine: Engine, limits: Limits, lag: LagGauge, queues: Queues) -> None:
        self._jobs, self._engine, self._limits, self._lag = jobs, engine, limits, lag
        self._queues = queues
        self._since = time.time()

    async def state(self) -> DaemonState:
        sandboxes, sandboxes_unknown = await self._sandboxes()
        queues, queues_unknown = await self._queues_between()
        return DaemonState(
            version=version("termloom"),
            engine=self._engine.name,
            draining=self._jobs.draining,
            up_s=time.time() - self._since,
            lag_p50_s=self._lag.quantile(0.5),
            lag_p99_s=self._lag.quantile(0.99),
            jobs=tuple(self.job(job) for job in self._jobs.all()),
            limits=tuple(self._limits.state()),
            sandboxes=sandboxes,
            sandboxes_unknown=sandboxes_unknown,
            queues=queues,
            queues_unknown=queues_unknown,
        )

    async def _sandboxes(self) -> tuple[tuple[SandboxRecord, ...], str]:
        """With the reason when the engine does not answer: everything else is shown all the same."""
        try:
            return tuple(await self._engine.inventory()), ""
        except SandboxError as error:
            return (), str(error)

    async def _queues_between(self) -> tuple[tuple[QueueState, ...], str]:
        """With the reason when the bus does not answer."""
        try:
            return tuple(await self._queues()), ""
        except (BusClosed, BusSilent) as error:
            return (), str(error)

    def job(self, job: Job) -> JobState:
        live = self._jobs.live.get(job.job)
        if live is None:
            return JobState(job=job)
        moved = live.tally.moved_at or job.started_at
        return JobState(
            job=job,
            paused=bool(live.runner and live.runner.paused and job.state == "running"),
            still_s=time.time() - moved if job.state == "running" else 0.0,
            stages=tuple(_stages(live)),
            calls=_calls(live.calls) if live.calls.tries else None,
            numbers=live.numbers,
        )

    async def spending(self, job: Job) -> Spending:
        """Raises: StoreError."""
        path = self._store_of(job)
        if path is None:
            return Spending()
        async with Store(path) as store:
            calls, prompt, completion, cost = await store.calls()
        chat = self._jobs.settings_of(job).chat
        return Spending(
            calls=calls,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=cost,
            budget_tokens=chat.budget_tokens,
            budget_cost=chat.budget_cost,
        )

    async def dead_letters(self) -> list[tuple[Job, DeadLetter]]:
        """Of all jobs. Raises: StoreError."""
        found: list[tuple[Job, DeadLetter]] = []
        for job in self._jobs.all():
            if path := self._store_of(job):
                async with Store(path) as store:
                    found += [(job, letter) for letter in await store.dead_letters(job.run_id)]
        return found

    async def places(self, name: str) -> list[Place]:
        """Where an item is: in the job of JOB/ITEM, else in every job that has it. Raises: UserError when none has."""
        jobs = self._jobs.all()
        first, _, rest = name.partition("/")
        of_job = [(job, rest) for job in jobs if job.job == first]
        wanted = of_job or [(job, name) for job in jobs]
        found = [place for job, item in wanted for place in await self._places(job, item)]
        if not found:
            raise UserError("explain", f"there is no job or item '{name}'", "See termloom ctl ps")
        return found

    async def _places(self, job: Job, item: str) -> list[Place]:
        path = self._store_of(job)
        if path is None:
            return []
        async with Store(path) as store:
            where = await store.where(job.run_id, item)
            journal = await store.journal(job.run_id, item=item) if where else []
        if where is None:
            return []
        stages = {stage.subscribes: stage.name for stage in job_kind(job.kind).stages}
        live = self._jobs.live.get(job.job)
        at_work = live is not None and any(item in stage.working for stage in live.tally.stages.values())
        if where.state == "terminal":
            place = f"ended in '{where.queue}'"
        else:
            place = f"{'in work at' if at_work else 'waits for'} stage '{stages[where.queue]}'"
        return [
            Place(
                job=job.job,
                item=item,
                place=place,
                for_s=time.time() - where.updated,
                attempts=where.attempts,
                waits_for=tuple(self._claims(item)),
                journal=tuple(journal),
            )
        ]

    def _store_of(self, job: Job) -> Path | None:
        """None before its first turn, and for a kind that no package makes any more."""
        if job.kind not in job_kinds():
            return None
        path = self._jobs.place_of(job).store
        return path if path.exists() else None

    def _claims(self, item: str) -> list[str]:
        now = time.monotonic()
        return [f"{claim.state} '{claim.limit}' for {now - claim.since:.0f} s" for claim in self._limits.of(item)]


def _calls(calls: CallTally) -> CallState:
    return CallState(
        tries=calls.tries,
        answered=calls.answered,
        told_to_slow_down=calls.told_to_slow_down,
        failed=calls.failed,
        per_min=calls.rate_per_min(time.time()),
        p50_s=calls.latency_s(0.5),
        p95_s=calls.latency_s(0.95),
    )


def _stages(live: LiveJob) -> list[StageState]:
    now = time.time()
    queues = {stage.name: stage.subscribes for stage in job_kind(live.job.kind).stages}
    return [
        StageState(
            stage=name,
            subscribes=queues[name],
            ready=len(stage.ready),
            delayed=len(stage.delayed),
            working=len(stage.working),
            passed=stage.passed,
            rejected=dict(stage.rejected),
            retried=stage.retried,
            per_min=stage.rate_per_min(now),
            oldest_s=stage.oldest_s(now),
        )
        for name, stage in live.tally.stages.items()
    ]
