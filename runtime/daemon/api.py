"""The daemon's HTTP interface for programs: JSON in, JSON out, events as one JSON object a line.

    GET  /api/state                                   everything at once
    POST /api/jobs                                    submit: {kind, settings, options}
    GET  /api/jobs/JOB                                one job
    GET  /api/jobs/JOB/events                         what happens, until the job is over; the last line is the job
    POST /api/jobs/JOB/cancel|pause|unpause|drain|resume
    POST /api/jobs/JOB/items/ITEM/cancel|requeue
    GET  /api/explain/ID                              a job, an item or JOB/ITEM: where it is, what it waits for
    GET  /api/dead-letters
    POST /api/set                                     {"limits.build": 4}
    POST /api/drain                                   the whole daemon

What the caller did wrong is 400 with `where`, `problem` and `remedy`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from runtime.daemon.jobs import JobRequest, Jobs
from runtime.daemon.records import Job
from runtime.daemon.state import Reporter
from runtime.errors import StoreError, UserError
from runtime.limits import Limits
from sandbox.errors import SandboxError

Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The handlers, over the parts of one daemon."""

    def __init__(self, jobs: Jobs, reporter: Reporter, limits: Limits, *, drain: Callable[[], None]) -> None:
        self._jobs, self._reporter, self._limits, self._drain = jobs, reporter, limits, drain

    def routes(self) -> list[Route]:
        get, post = ["GET"], ["POST"]
        return [
            Route("/api/state", told(self.state), methods=get),
            Route("/api/jobs", told(self.submit), methods=post),
            Route("/api/jobs/{job}", told(self.job), methods=get),
            Route("/api/jobs/{job}/events", told(self.events), methods=get),
            Route("/api/jobs/{job}/{action}", told(self.act), methods=post),
            Route("/api/jobs/{job}/items/{item:path}/{action}", told(self.act_on_item), methods=post),
            Route("/api/explain/{name:path}", told(self.explain), methods=get),
            Route("/api/dead-letters", told(self.dead_letters), methods=get),
            Route("/api/set", told(self.set), methods=post),
            Route("/api/drain", told(self.drain), methods=post),
        ]

    async def state(self, _: Request) -> Response:
        return answer(await self._reporter.state())

    async def submit(self, request: Request) -> Response:
        try:
            asked = JobRequest.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise UserError(where, first["msg"], "Send kind, settings and options") from None
        return answer(self._jobs.submit(asked))

    async def job(self, request: Request) -> Response:
        return answer(self._reporter.job(self._jobs.get(request.path_params["job"])))

    async def events(self, request: Request) -> Response:
        name = request.path_params["job"]
        self._jobs.get(name)
        return StreamingResponse(self._lines(name), media_type="application/x-ndjson")

    async def _lines(self, name: str) -> AsyncIterator[bytes]:
        while (live := await self._jobs.started(name)) is None:
            yield b"\n"  # it waits for its turn
        if live:
            async for missed, event in live.log.follow():
                if missed:
                    yield b'{"kind":"missed","count":%d}\n' % missed
                yield (msgspec.json.encode(event) if event else b"") + b"\n"
        yield b'{"kind":"job","job":' + msgspec.json.encode(self._jobs.get(name)) + b"}\n"

    async def act(self, request: Request) -> Response:
        jobs = self._jobs
        actions: dict[str, Callable[[str], Job]] = {
            "cancel": jobs.cancel,
            "pause": jobs.pause,
            "unpause": jobs.unpause,
            "drain": jobs.drain_job,
            "resume": jobs.resume,
        }
        action = actions.get(request.path_params["action"])
        if action is None:
            raise UserError("action", "there is no such action", f"There are {', '.join(actions)}")
        return answer(self._reporter.job(action(request.path_params["job"])))

    async def act_on_item(self, request: Request) -> Response:
        job, item, action = (request.path_params[name] for name in ("job", "item", "action"))
        if action == "requeue":
            return answer({"job": job, "item": await self._jobs.requeue(job, item)})
        if action == "cancel":
            self._jobs.cancel_item(job, item)
            return answer({"job": job, "item": item})
        raise UserError("action", "there is no such action", "There are cancel, requeue")

    async def explain(self, request: Request) -> Response:
        name = request.path_params["name"]
        jobs = {job.job: job for job in self._jobs.all()}
        if name in jobs:
            return answer({"jobs": [self._reporter.job(jobs[name])], "items": []})
        return answer({"jobs": [], "items": await self._reporter.places(name)})

    async def dead_letters(self, _: Request) -> Response:
        letters = await self._reporter.dead_letters()
        return answer(
            [
                {"job": job.job, "item": letter.item, "queue": letter.queue, "reason": letter.reason, "at": letter.at}
                for job, letter in letters
            ]
        )

    async def set(self, request: Request) -> Response:
        wanted = json.loads(await request.body() or b"{}")
        known = {state.limit for state in self._limits.state()}
        for key, value in wanted.items():
            section, _, name = key.partition(".")
            if section != "limits" or name not in known:
                remedy = f"There are {', '.join(f'limits.{limit}' for limit in sorted(known))}"
                raise UserError(key, "cannot be set while the daemon runs", remedy)
            if not str(value).isdigit() or int(value) < 1:
                raise UserError(key, f"{value!r} is no number of at least 1", "Write, say, limits.build=4")
        for key, value in wanted.items():
            self._limits.resize(key.partition(".")[2], int(value))
        return answer(self._limits.state())

    async def drain(self, _: Request) -> Response:
        self._drain()
        return answer({"draining": True})


def answer(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def told(endpoint: Endpoint) -> Endpoint:
    """What the caller did wrong, and a store or an engine that cannot be used, as an answer."""

    async def tell(request: Request) -> Response:
        try:
            return await endpoint(request)
        except UserError as error:
            return answer({"where": error.where, "problem": error.problem, "remedy": error.remedy}, status=400)
        except StoreError as error:
            return answer({"where": error.path, "problem": error.reason, "remedy": error.remedy}, status=500)
        except SandboxError as error:
            remedy = "See termloom doctor"
            return answer({"where": "engine", "problem": str(error), "remedy": remedy}, status=500)
        except json.JSONDecodeError as error:
            return answer({"where": "body", "problem": str(error), "remedy": "Send JSON"}, status=400)

    return tell
