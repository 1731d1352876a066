"""A command that finds a daemon gives it the job and follows it; interrupting the command leaves the job at work."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from runtime.daemon.client import DaemonClient
from runtime.daemon.records import OVER, Job
from runtime.daemon.sections import travelling
from runtime.errors import RuntimeFault
from runtime.events import OnEvent, RunEvent
from runtime.progress import show_progress
from runtime.settings import Settings


class JobSuspended(RuntimeFault):
    """The daemon stops: the job waits for its next start."""

    def __init__(self, job: str) -> None:
        super().__init__(f"the daemon stops; job {job} goes on when it is started again")


class JobFailed(RuntimeFault):
    """The job a command waited for did not come to its end."""

    def __init__(self, job: Job) -> None:
        self.job = job
        why = job.detail.strip().rpartition("\n")[2] or "see its log"
        super().__init__(f"job {job.job} {job.state}: {why}")


async def submit_and_follow(
    client: DaemonClient,
    kind: str,
    *,
    settings: Settings,
    options: Mapping[str, Any],
    stages: Sequence[str],
    as_json: bool,
) -> Job:
    """The job at its end. Raises: UserError, JobFailed, JobSuspended, DaemonError."""
    body = {"kind": kind, "settings": travelling(settings), "options": dict(options)}
    name = (await client.post("jobs", body=body))["job"]
    _say(f"job {name}, in the daemon at {client.url}")
    try:
        async with show_progress(stages, json=as_json) as on_event:
            job = await _follow(client, name, on_event)
    except anyio.get_cancelled_exc_class():
        _say(f"job {name} goes on: termloom ctl explain {name}, or termloom ctl cancel {name}")
        raise
    if job.state in ("failed", "cancelled"):
        raise JobFailed(job)
    return job


async def _follow(client: DaemonClient, name: str, on_event: OnEvent) -> Job:
    async for line in client.follow("jobs", name, "events"):
        if line["kind"] == "job":
            job = msgspec.convert(line["job"], Job)
            if job.state not in OVER:
                break
            return job
        if line["kind"] == "missed":
            _say(f"{line['count']} events passed by unseen")
        else:
            on_event(msgspec.convert(line, RunEvent))
    raise JobSuspended(name)


def _say(line: str) -> None:
    sys.stderr.write(f"termloom: {line}\n")
    sys.stderr.flush()
