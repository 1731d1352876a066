"""A job in a process of its own, as the daemon sees it: started, lent places, steered, followed, started again, killed.

Invariants:
- The process leads a session; when the daemon dies, the line ends and the process kills itself and its group at once.
- Places that it holds in the daemon's limits come back when it ends, however it ends.
- A process that dies without having said what its job came to is started again, a few times, and goes on with what is
  recorded; what its job says to have failed is final.
- When the job is cancelled the process is killed; its sandboxes are then a dead owner's, which the daemon reaps.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, SocketStream, TaskGroup

from runtime.causes import first_cause
from runtime.chat.notes import tell_call
from runtime.daemon import line
from runtime.daemon.kind import JobPlace, JobWork
from runtime.daemon.sections import whole
from runtime.errors import RuntimeFault, UserError
from runtime.events import Kind, RunEvent
from sandbox.reaper import reap

ATTEMPTS = 3
"""Processes of one job, in one turn, that may die unexpectedly before the job has failed."""
_PAUSE_S = 2.0
_LEAVE_S = 20.0
"""For a process that has said its last word to be gone."""
_TAIL_BYTES = 2000


class FailedApart(RuntimeFault):
    """The job failed in its process: the message says why."""


class ProcessDied(RuntimeFault):
    """The process of a job ended without a word."""

    def __init__(self, code: int | None, log: Path) -> None:
        how = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
        super().__init__(f"the job's process ended {how}; the end of {log}:\n{_tail(log)}")


async def run_apart(kind: str, work: JobWork, place: JobPlace) -> dict[str, Any]:
    """Carry a job out in a process; returns its result. Raises: FailedApart, ProcessDied."""
    job = _Apart(kind, work, place)
    for left in reversed(range(ATTEMPTS)):
        try:
            return await job.run()
        except ProcessDied as died:
            await reap(work.engine, now=time.time(), run_id=place.run_id)
            if job.drained:
                return {"state": "drained", "reason": job.drained}
            if not left:
                raise
            work.on_event(_said(place, f"{died.args[0].splitlines()[0]}; started again"))
        job = _Apart(kind, replace(work, begun=True), place, paused=job.paused)
        work.announce(job)  # what it is told from now on, its process hears once it is there
        await anyio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


class _Apart:
    """One process. What it announces is steered through here: see `runtime.daemon.kind.Steered`. Use once."""

    def __init__(self, kind: str, work: JobWork, place: JobPlace, *, paused: bool = False) -> None:
        self._kind, self._work, self._place = kind, work, place
        self._log = place.notes_directory / "process.log"
        self._to_say, self._sayings = anyio.create_memory_object_stream[line.Said](float("inf"))
        self._lent: dict[int, anyio.CancelScope] = {}
        self._pending: set[str] = set()
        self._requeues: dict[str, tuple[anyio.Event, list[str | None]]] = {}
        self._steered = False
        self.paused = paused
        self.drained = ""
        """Why it was told to drain."""

    async def run(self) -> dict[str, Any]:
        with self._to_say, self._sayings:
            async with self._process() as (process, stream):
                begin = line.Begin(
                    kind=self._kind,
                    settings=whole(self._work.settings, engine=self._work.engine.name),
                    options=dict(self._work.options),
                    begun=self._work.begun,
                )
                with suppress(anyio.BrokenResourceError):  # it is gone already, which the listener hears as well
                    await line.say(stream, begin)
                result = await self._converse(stream)
                with anyio.move_on_after(_LEAVE_S):
                    await process.wait()
        if result is None:
            raise ProcessDied(process.returncode, self._log)
        return result

    def drain(self, reason: str = "asked to") -> None:
        self.drained = reason
        self._say(line.Drain(reason=reason))

    def pause(self) -> None:
        self._require_steered("paused")
        self.paused = True
        self._say(line.Pause(on=True))

    def unpause(self) -> None:
        self.paused = False
        self._say(line.Pause(on=False))

    def cancel(self, item: str) -> bool:
        if item in self._pending:
            self._require_steered("told to leave an item out")
            self._say(line.CancelItem(item=item))
        return item in self._pending

    async def requeue(self, item: str) -> str | None:
        if not self._steered:
            return None
        if item not in self._requeues:
            self._requeues[item] = anyio.Event(), []
            self._say(line.Requeue(item=item))
        answered, answers = self._requeues[item]
        await answered.wait()
        return answers[0]

    def _require_steered(self, told: str) -> None:
        if not self._steered:
            raise UserError("job", f"a job of kind '{self._kind}' cannot be {told}", "Drain it, and resume it later")

    def _say(self, said: line.Said) -> None:
        with suppress(anyio.ClosedResourceError):  # the process has ended, and hears nothing any more
            self._to_say.send_nowait(said)

    async def _converse(self, stream: SocketStream) -> dict[str, Any] | None:
        """Until the process has said what came of it, or nothing more will come. Raises: FailedApart."""
        result: dict[str, Any] | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._speak, stream)
                result = await self._listen(stream, group)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as error:
            raise first_cause(error) from error
        finally:
            self._steered = False
            self._end_requeues()
        return result

    async def _speak(self, stream: SocketStream) -> None:
        async for said in self._sayings:
            try:
                await line.say(stream, said)
            except anyio.BrokenResourceError:
                return  # it is gone, which the listener hears as well

    async def _listen(self, stream: SocketStream, group: TaskGroup) -> dict[str, Any] | None:
        async for said in line.heard(stream):
            match said:
                case line.Happened(event=event):
                    self._note(event)
                case line.Take():
                    scope = self._lent[said.claim] = anyio.CancelScope()
                    group.start_soon(self._lend, said, scope)
                case line.Give(claim=claim):
                    self._lent.pop(claim).cancel()
                case line.Called(note=note):
                    tell_call(note)
                case line.Announced(steered=steered):
                    self._steered = steered
                    self._work.announce(self)
                    if self.paused:  # as the process before it was
                        self._say(line.Pause(on=True))
                case line.Requeued(item=item, fresh=fresh):
                    answered, answers = self._requeues.pop(item)
                    answers.append(fresh)
                    answered.set()
                case line.Result(result=result):
                    return result
                case line.Failure(detail=detail):
                    raise FailedApart(detail)
        return None

    async def _lend(self, take: line.Take, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._work.limits.take(take.limit, item=take.item):
                self._say(line.Granted(claim=take.claim))
                await anyio.sleep_forever()

    def _note(self, event: RunEvent) -> None:
        if event.kind is Kind.QUEUED:
            self._pending.add(event.item)
        elif event.kind is Kind.SETTLED:
            self._pending.discard(event.item)
        self._work.on_event(event)

    def _end_requeues(self) -> None:
        for answered, answers in self._requeues.values():
            answers.append(None)
            answered.set()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[tuple[Process, SocketStream]]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as log:
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "runtime.daemon.inside", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        async with _killed_in_the_end(process), await SocketStream.from_socket(ours) as stream:
            yield process, stream


@asynccontextmanager
async def _killed_in_the_end(process: Process) -> AsyncIterator[None]:
    """Whatever happens, nothing of the process is left afterwards."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started is still there when it died by itself
            await process.wait()


def _said(place: JobPlace, detail: str) -> RunEvent:
    return RunEvent(kind=Kind.SAID, run=place.run_id, at=time.time(), detail=detail)


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
