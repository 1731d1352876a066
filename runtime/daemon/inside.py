"""The process of one job: `python -m runtime.daemon.inside FD`, started by the daemon and by nobody else.

It carries the job out as the daemon would, with an engine of its own and places in the daemon's limits. When the line
ends, the daemon is gone: the process kills itself and its children, so that the next daemon never meets it at work.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread
from anyio.abc import SocketStream

from runtime.causes import first_cause
from runtime.chat.notes import CallNote, listening_to_calls
from runtime.daemon import line
from runtime.daemon.kind import Drainable, JobKind, JobWork, job_kind
from runtime.daemon.lent import LentLimits
from runtime.engines import open_settings_engine
from runtime.errors import RuntimeFault
from runtime.events import RunEvent, fan_out
from runtime.logs import log_event, logging_to
from runtime.runner import Runner
from runtime.settings import Settings
from sandbox.errors import SandboxError


class _Desk:
    """Between the daemon and the work: says what happens, does what it is told. Lives in one event loop."""

    def __init__(self, stream: SocketStream, words: AsyncIterator[line.Anything], settings: Settings) -> None:
        self._stream, self._words = stream, words
        self._loop = asyncio.get_running_loop()
        self._to_say, self._sayings = anyio.create_memory_object_stream[line.Said](float("inf"))
        self._work: Drainable | None = None
        self._draining = ""
        self.limits = LentLimits(settings.limits.sizes(), self.say)

    def say(self, said: line.Said) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._to_say.send_nowait, said)

    def happened(self, event: RunEvent) -> None:
        self.say(line.Happened(event=event))

    def called(self, note: CallNote) -> None:
        self.say(line.Called(note=note))

    def announce(self, work: Drainable) -> None:
        self._work = work
        self.say(line.Announced(steered=isinstance(work, Runner)))
        if self._draining:
            work.drain(self._draining)

    async def speak(self) -> None:
        """Until the last word has been said."""
        async for said in self._sayings:
            await line.say(self._stream, said)
            if isinstance(said, line.Result | line.Failure):
                return

    async def listen(self) -> None:
        async for said in self._words:
            match said:
                case line.Granted(claim=claim):
                    self.limits.granted(claim)
                case line.Drain(reason=reason):
                    self._draining = reason
                    if self._work:
                        self._work.drain(reason)
                case _ if isinstance(self._work, Runner):
                    await self._steer(self._work, said)
        os.killpg(os.getpid(), signal.SIGKILL)  # with what it started: it leads its session

    async def _steer(self, runner: Runner, said: line.Anything) -> None:
        match said:
            case line.Pause(on=True):
                runner.pause()
            case line.Pause():
                runner.unpause()
            case line.CancelItem(item=item):
                runner.cancel(item)
            case line.Requeue(item=item):
                self.say(line.Requeued(item=item, fresh=await runner.requeue(item)))


async def work_off(descriptor: int) -> None:
    """Do what the daemon at the other end says."""
    async with await SocketStream.from_socket(socket.socket(fileno=descriptor)) as stream:
        words = line.heard(stream)
        begin = await anext(words)
        assert isinstance(begin, line.Begin), "the daemon begins"
        settings, kind = Settings(**begin.settings), job_kind(begin.kind)
        desk = _Desk(stream, words, settings)
        async with anyio.create_task_group() as group:
            group.start_soon(desk.listen)
            group.start_soon(_carry_out, kind, begin, settings, desk)
            await desk.speak()
            group.cancel_scope.cancel()


async def _carry_out(kind: JobKind, begin: line.Begin, settings: Settings, desk: _Desk) -> None:
    """The last word is said when everything is closed again."""
    try:
        said: line.Said = line.Result(result=await _result(kind, begin, settings, desk))
    except Exception as error:
        cause = first_cause(error)
        expected = isinstance(cause, RuntimeFault | SandboxError)
        said = line.Failure(detail=str(cause) if expected else "".join(traceback.format_exception(cause)))
    desk.say(said)


async def _result(kind: JobKind, begin: line.Begin, settings: Settings, desk: _Desk) -> dict[str, Any]:
    place = kind.place(settings, begin.options)
    directory = place.notes_directory
    with (
        logging_to(directory / "log.jsonl"),
        listening_to_calls(desk.called),
        await anyio.to_thread.run_sync(_alone, directory),
    ):
        async with open_settings_engine(settings, lambda _: None) as engine:
            return await kind.run(
                JobWork(
                    settings=settings,
                    options=begin.options,
                    begun=begin.begun,
                    engine=engine,
                    limits=desk.limits,
                    stages=kind.stages,
                    on_event=fan_out(desk.happened, log_event),
                    announce=desk.announce,
                )
            )


def _alone(directory: Path) -> IO[str]:
    """Wait until the process of an earlier daemon is gone; held until closed."""
    lock = (directory / "process.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


if __name__ == "__main__":
    anyio.run(work_off, int(sys.argv[1]))
