"""The jobs of one daemon: accepted, worked off a few at a time, resumed after a restart, stopped on request.

Invariants:
- A job is recorded before it is acknowledged, and every change of its state before anything follows from it.
- What a killed or drained daemon left under way is queued again at the next start and resumes from its store.
- Two jobs never write into one run. A submission for a run in work is refused before it is checked: a check may clear
  what an earlier run left. Nobody begins work on a run while a dead letter is put into its store.
- A cancelled job's sandboxes are gone before it is called cancelled, or it says why they may not be.
- A job that fails does not touch the others; kinds of jobs share every limit fairly, however many items each has.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.abc
import msgspec
import structlog
from pydantic import BaseModel, ConfigDict

from runtime.bus.signal import Signal
from runtime.causes import first_cause
from runtime.chat.notes import CallNote, OnCall, listening_to_calls
from runtime.daemon.apart import run_apart
from runtime.daemon.kind import JobKind, JobPlace, JobWork, Steered, job_kind, job_kinds
from runtime.daemon.live import LiveJob
from runtime.daemon.records import OVER, Job, JobRecords
from runtime.daemon.sections import merged, without_secrets
from runtime.errors import RuntimeFault, UserError
from runtime.events import OnEvent, fan_out
from runtime.limits import Limits
from runtime.logs import log_event
from runtime.metrics_file import metrics_lines
from runtime.progress import Tally
from runtime.requeue import find_letter, successor
from runtime.routes import Routes
from runtime.settings import Settings
from runtime.stage import Stage
from runtime.store import Store
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.reaper import reap

_CLEAR_S = 30.0
"""For removing the sandboxes of a cancelled job."""

Spread = Callable[[JobKind, JobPlace, Settings], tuple[Stage, ...]]
"""A kind's stages as this daemon runs them: here, or sent to other machines."""


class JobRequest(BaseModel):
    """What a submitter sends."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}


class Jobs:
    """Use `run` in a task group of the daemon's. Lives in one event loop."""

    def __init__(
        self,
        settings: Settings,
        records: JobRecords,
        *,
        engine: Engine,
        limits: Limits,
        spread: Spread,
        listen: OnEvent,
        on_call: OnCall,
    ) -> None:
        self._settings, self._records, self._engine, self._limits = settings, records, engine, limits
        self._spread, self._listen, self._on_call = spread, listen, on_call
        self._jobs = {job.job: job for job in records.all()}
        self.live: dict[str, LiveJob] = {}
        """Jobs of this daemon's lifetime, over or not."""
        self._receiving: list[str] = []
        """Runs whose stores a dead letter is being put into; one entry for each letter."""
        self._changed = Signal()
        self._draining = False
        self._log = structlog.stdlib.get_logger("termloom.daemon")

    async def run(self) -> None:
        """Work off jobs until drained and nothing is in work any more."""
        for job in self.all():
            if job.state == "running":
                self._record(job, state="queued")
        async with anyio.create_task_group() as group:
            while not self._draining:
                self._start_next(group)
                await self._changed.wait(None)

    def drain(self) -> None:
        """Take up no job and no item any more; what is in work finishes, the rest waits for the next start."""
        self._draining = True
        for live in self.live.values():
            if live.runner and live.job.state == "running":
                live.runner.drain("the daemon stops")
        self._changed.notify()

    @property
    def draining(self) -> bool:
        return self._draining

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def get(self, name: str) -> Job:
        """Raises: UserError."""
        if name not in self._jobs:
            raise UserError("job", f"there is no '{name}'", "See termloom ctl ps")
        return self._jobs[name]

    def submit(self, request: JobRequest) -> Job:
        """Accept a job. Raises: UserError."""
        if self._draining:
            raise UserError("daemon", "it stops and takes no more jobs", "Start it again, or use --here")
        kind = job_kind(request.kind)
        settings = merged(self._settings, request.settings)
        place = kind.place(settings, request.options)
        self._require_free(place.run_id, str(place.out))
        if place.run_id in self._receiving:
            raise UserError(str(place.out), "a dead letter is being put back there", "Try again in a moment")
        kind.check(settings, request.options)
        job = Job(
            job=f"j{max((job.number for job in self.all()), default=0) + 1}",
            kind=kind.name,
            settings=without_secrets(request.settings),
            options=request.options,
            run_id=place.run_id,
            out=str(place.out),
            created_at=time.time(),
        )
        self._record(job)
        self._changed.notify()
        return job

    def cancel(self, name: str) -> Job:
        """Stop a job: what is in work is given up, its sandboxes go. Raises: UserError when it is over."""
        job = self.get(name)
        if job.state == "queued":
            return self._record(job, state="cancelled", ended_at=time.time())
        live = self._in_work(name)
        live.cancelled = True
        live.scope.cancel()
        return job

    def cancel_item(self, name: str, item: str) -> None:
        """End one item of a job in work. Raises: UserError."""
        if not self._runner_of(name).cancel(item):
            raise UserError("item", f"job {name} has no pending '{item}'", f"See termloom ctl explain {item}")

    async def started(self, name: str, *, patience_s: float = 15.0) -> LiveJob | Literal[False] | None:
        """The job as it can be followed; False when it is over and was not in work here; None: it still waits."""
        with anyio.move_on_after(patience_s):
            while name not in self.live:
                if self.get(name).state in OVER or self._draining:
                    return False
                await self._changed.wait(None)
        return self.live.get(name)

    def pause(self, name: str) -> Job:
        """Let a job take up nothing new. Raises: UserError."""
        self._runner_of(name).pause()
        return self.get(name)

    def unpause(self, name: str) -> Job:
        self._runner_of(name).unpause()
        return self.get(name)

    def drain_job(self, name: str) -> Job:
        """Let a job finish what is in work and stop there. Raises: UserError."""
        self._runner_of(name).drain("asked to")
        return self.get(name)

    def resume(self, name: str) -> Job:
        """Put a job that stopped before its end back into the queue. Raises: UserError."""
        job = self.get(name)
        if job.state not in ("drained", "failed", "cancelled"):
            raise UserError("job", f"{name} is {job.state}", "Only a job that stopped before its end can go on")
        self._require_free(job.run_id, job.out)
        return self._again(job)

    async def requeue(self, name: str, item: str) -> str:
        """Put a dead letter of a job back, in work or not; returns the new item. Raises: UserError, StoreError."""
        fresh = await self._runner_of(name).requeue(item) if self.get(name).state == "running" else None
        if fresh is None and self.get(name).state != "running":  # at rest, or at its end before its runner heard of it
            fresh = await self._put_back(name, item)
        if fresh is None:
            problem = f"job {name} has no dead letter '{item}' that can be put back now"
            raise UserError("item", problem, "See termloom ctl dead-letters")
        return fresh

    async def _put_back(self, name: str, item: str) -> str | None:
        """Put a letter into the store of a job that is not in work, and the job into the queue. None: no such letter.

        Raises: UserError, StoreError.
        """
        job = self.get(name)
        self._require_free(job.run_id, job.out, but=name)
        self._receiving.append(job.run_id)
        try:
            fresh = await self._written_back(job, item)
        finally:
            self._receiving.remove(job.run_id)
            self._changed.notify()
        if fresh is not None and self.get(name) is job and job.state in OVER and self._at(job.run_id) is None:
            self._again(job)
        return fresh

    async def _written_back(self, job: Job, item: str) -> str | None:
        place, routes = self.place_of(job), Routes(job_kind(job.kind).stages)
        if not place.store.exists():
            return None
        async with Store(place.store) as store:
            letter = await find_letter(store, job.run_id, item)
            if letter and await store.requeue(job.run_id, letter, entry := successor(routes, letter)):
                return entry.item
        return None

    def place_of(self, job: Job) -> JobPlace:
        return job_kind(job.kind).place(self.settings_of(job), job.options)

    def settings_of(self, job: Job) -> Settings:
        """The settings in force for a job: its own sections over the daemon's."""
        return merged(self._settings, job.settings)

    def _in_work(self, name: str) -> LiveJob:
        live = self.live.get(name)
        if live is None or self.get(name).state != "running":
            raise UserError("job", f"{name} is {self.get(name).state}", "Only a job in work can be told this")
        return live

    def _runner_of(self, name: str) -> Steered:
        live = self._in_work(name)
        if live.runner is None:
            raise UserError("job", f"{name} is still being set up", "Try again in a moment")
        return live.runner

    def _at(self, run_id: str, *, but: str = "") -> Job | None:
        """Who works on a run, or waits to; the job `but` is not meant."""
        return next((j for j in self.all() if j.run_id == run_id and j.job != but and j.state not in OVER), None)

    def _require_free(self, run_id: str, out: str, *, but: str = "") -> None:
        """Raises: UserError."""
        if job := self._at(run_id, but=but):
            raise UserError(out, f"job {job.job} writes there", f"See termloom ctl explain {job.job}")

    def _again(self, job: Job) -> Job:
        self.live.pop(job.job, None)  # who follows it waits for the new beginning
        queued = self._record(job, state="queued", ended_at=0.0, detail="", result={})
        self._changed.notify()
        return queued

    def _record(self, job: Job, **changes: Any) -> Job:
        changed = msgspec.structs.replace(job, **changes)
        self._records.write(changed)
        self._jobs[job.job] = changed
        if live := self.live.get(job.job):
            live.job = changed
        return changed

    def _start_next(self, group: anyio.abc.TaskGroup) -> None:
        waiting = [job for job in self.all() if job.state == "queued" and job.run_id not in self._receiving]
        running = sum(job.state == "running" for job in self.all())
        for job in waiting[: max(0, self._settings.daemon.jobs - running)]:
            kind = job_kinds().get(job.kind)
            if kind is None:
                self._record(
                    job, state="failed", ended_at=time.time(), detail=f"no package makes '{job.kind}' any more"
                )
                continue
            begun = self._record(job, state="running", started_at=time.time())
            live = self.live[job.job] = LiveJob(begun, Tally([stage.name for stage in kind.stages]))
            group.start_soon(self._work, begun, live)
            self._changed.notify()

    async def _work(self, job: Job, live: LiveJob) -> None:
        try:
            with live.scope:
                await self._end(live, await self._carry_out(job, live))
        except Exception as error:
            self._fail(live, first_cause(error))
        finally:
            try:
                if live.cancelled and live.job.state == "running":
                    self._record(live.job, state="cancelled", detail=await self._clear(live), ended_at=time.time())
            finally:
                live.log.close()
                self._changed.notify()

    async def _carry_out(self, job: Job, live: LiveJob) -> dict[str, Any]:
        kind, settings = job_kind(job.kind), self.settings_of(job)
        place = kind.place(settings, job.options)

        def announce(runner: Any) -> None:
            live.runner = runner
            if self._draining:
                runner.drain("the daemon stops")

        begun, job = job.begun, self._record(job, begun=True)
        work = JobWork(
            settings=settings,
            options=job.options,
            begun=begun,
            engine=self._engine,
            limits=self._limits.share(kind.name),
            stages=self._spread(kind, place, settings),
            on_event=fan_out(live.listen, self._listen, log_event),
            announce=announce,
        )

        def called(note: CallNote) -> None:
            live.calls(note)
            self._on_call(note)

        with listening_to_calls(called):
            async with metrics_lines(place.notes_directory / "metrics.jsonl", live.tally):
                return await (run_apart(kind.name, work, place) if kind.apart else kind.run(work))

    async def _end(self, live: LiveJob, result: dict[str, Any]) -> None:
        drained = result.get("state") == "drained"
        if drained and self._draining:
            return  # still "running" on disk: the next start takes it up
        state = "drained" if drained else "finished"
        self._record(live.job, state=state, ended_at=time.time(), result=result, detail=result.get("reason", ""))

    def _fail(self, live: LiveJob, error: BaseException) -> None:
        expected = isinstance(error, RuntimeFault | SandboxError)
        detail = str(error) if expected else "".join(traceback.format_exception(error))
        self._log.error("job failed", job=live.job.job, detail=detail)
        self._record(live.job, state="failed", ended_at=time.time(), detail=detail)

    async def _clear(self, live: LiveJob) -> str:
        """Remove what a cancelled job left in the engine; returns what may still be there, in words."""
        left = f"no answer within {_CLEAR_S:g} s"
        with anyio.move_on_after(_CLEAR_S, shield=True):
            try:
                reaped = await reap(self._engine, now=time.time(), run_id=live.job.run_id)
            except SandboxError as error:
                left = str(error)
            else:
                left = "; ".join(f"{record.sandbox_id}: {reason}" for record, reason in reaped.failed)
        return f"its sandboxes may still be there: {left}" if left else ""
