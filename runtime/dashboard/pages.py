"""The pages of the dashboard: made on the server, complete without script; the script only keeps them current.

Invariants:
- Every template escapes: text from models, agents and tasks is text, wherever it stands.
- A page asks the daemon at that moment; nothing is cached, and an age is shown for what may have stopped.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

import anyio.to_thread
import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from runtime.daemon.jobs import Jobs
from runtime.daemon.kind import job_kinds
from runtime.daemon.records import Job
from runtime.daemon.state import Reporter
from runtime.dashboard.census import census
from runtime.dashboard.charts import charts
from runtime.dashboard.library import Curve, Library
from runtime.dashboard.shelves import Shelf, shelf_routes
from runtime.errors import RuntimeFault, UserError
from sandbox.errors import SandboxError

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_EVENTS = 30
_JOBS = 25


class Templates:
    """The templates, and what they are given on every page."""

    def __init__(self, *, home: bool) -> None:
        """`home`: there is a daemon behind the pages, with an overview to go back to."""
        self._home = home
        self._environment = Environment(
            loader=PackageLoader("runtime.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"age": age, "brief": brief, "clock": clock, "number": number, "share": share}

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        text = self._environment.get_template(template).render(home=self._home, **values)
        return Response(text, status_code=status, media_type="text/html")

    def safely(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """What cannot be shown is said on a page."""

        async def show(request: Request) -> Response:
            try:
                return await endpoint(request)
            except UserError as error:
                return self.page("problem.html", status=404, problem=str(error))
            except (RuntimeFault, SandboxError) as error:
                return self.page("problem.html", status=500, problem=str(error))

        return show


class Pages:
    """The daemon's pages."""

    def __init__(self, *, jobs: Jobs, reporter: Reporter) -> None:
        self._jobs, self._reporter = jobs, reporter
        self._templates = Templates(home=True)

    def routes(self) -> list[Route]:
        safely = self._templates.safely
        return [
            Route("/", safely(self.overview)),
            Route("/compare", safely(self.compare)),
            Route("/jobs/{job}", safely(self.job)),
            Route("/jobs/{job}/items/{item:path}", safely(self.item)),
            Route("/jobs/{job}/{action}", safely(self.act), methods=["POST"]),
            Route("/dead-letters", safely(self.dead_letters)),
            Route("/jobs/{job}/items/{item:path}/{action}", safely(self.act_on_item), methods=["POST"]),
            *shelf_routes("/jobs/{job}/out", self._shelf, self._templates),
            *static_routes(),
        ]

    async def overview(self, _: Request) -> Response:
        state = await self._reporter.state()
        newest = list(reversed(state.jobs))[:_JOBS]
        spending = [(job, await self._reporter.spending(job.job)) for job in newest]
        return self._templates.page(
            "overview.html",
            state=state,
            jobs=newest,
            older=len(state.jobs) - len(newest),
            sandboxes=census(state.sandboxes, now=time.time()),
            spending=[(job, spent) for job, spent in spending if spent.calls or job.calls],
        )

    async def job(self, request: Request) -> Response:
        job = self._job(request)
        live = self._jobs.live.get(job.job)
        learning, stages = await anyio.to_thread.run_sync(self._curves, job)
        working = {} if live is None else {n: sorted(s.working) for n, s in live.tally.stages.items() if s.working}
        return self._templates.page(
            "job.html",
            state=self._reporter.job(job),
            spent=await self._reporter.spending(job),
            working=working,
            recorded=self._jobs.place_of(job).store.exists(),
            events=[] if live is None else list(reversed(live.log.latest(_EVENTS))),
            result=list(flat(job.result)),
            learning=charts([(job.job, learning)]),
            charts=charts([(job.job, stages)], stages=_stage_names(job)),
        )

    async def item(self, request: Request) -> Response:
        job, name = self._job(request), request.path_params["item"]
        places = await self._reporter.places(f"{job.job}/{name}")
        return self._templates.page("item.html", job=job, item=name, places=places)

    async def act(self, request: Request) -> Response:
        job, action = self._job(request), request.path_params["action"]
        actions = {"cancel": self._jobs.cancel, "pause": self._jobs.pause, "unpause": self._jobs.unpause}
        actions |= {"drain": self._jobs.drain_job, "resume": self._jobs.resume}
        if action not in actions:
            raise UserError("action", f"there is no '{action}'", f"There are {', '.join(actions)}")
        actions[action](job.job)
        return RedirectResponse(f"/jobs/{job.job}", status_code=303)

    async def act_on_item(self, request: Request) -> Response:
        job, item, action = self._job(request), request.path_params["item"], request.path_params["action"]
        if action == "requeue":
            item = await self._jobs.requeue(job.job, item)
        elif action == "cancel":
            self._jobs.cancel_item(job.job, item)
        else:
            raise UserError("action", f"there is no '{action}'", "There are cancel, requeue")
        return RedirectResponse(f"/jobs/{job.job}/items/{item}", status_code=303)

    async def dead_letters(self, _: Request) -> Response:
        return self._templates.page("dead_letters.html", letters=await self._reporter.dead_letters())

    async def compare(self, request: Request) -> Response:
        names = [request.query_params.get(side, "") for side in "ab"]
        jobs = [self._jobs.get(name) for name in names if name]
        curves = [(job.job, await anyio.to_thread.run_sync(self._curves, job)) for job in jobs]
        settings = [self._jobs.settings_of(job).effective() | dict(flat(job.options)) for job in jobs]
        results = [_rates(job) | dict(flat(job.result)) for job in jobs]
        differing = [
            (key, [_shown(values.get(key)) for values in settings])
            for key in sorted({key for values in settings for key in values})
            if len({str(values.get(key, "")) for values in settings}) > 1
        ]
        return self._templates.page(
            "compare.html",
            all=self._jobs.all(),
            names=names,
            jobs=jobs,
            yields=self._yields(jobs),
            results=[(key, [found.get(key, "") for found in results]) for key in merged_keys(results)],
            differing=differing,
            learning=charts([(name, learning) for name, (learning, _) in curves]),
            charts=charts(
                [(name, stages) for name, (_, stages) in curves],
                stages=[name for job in jobs for name in _stage_names(job)],
            ),
        )

    def _yields(self, jobs: list[Job]) -> list[tuple[str, list[Mapping[str, Any] | None]]]:
        """By stage, one cell a job: from its result, else from what was counted here."""
        tables = []
        for job in jobs:
            rows = job.result.get("summary", {}).get("stages") or msgspec.to_builtins(self._reporter.job(job).stages)
            tables.append({row["stage"]: row for row in rows})
        names = list(dict.fromkeys(name for table in tables for name in table))
        return [(name, [table.get(name) for table in tables]) for name in names]

    def _job(self, request: Request) -> Job:
        return self._jobs.get(request.path_params["job"])

    def _curves(self, job: Job) -> tuple[list[Curve], list[Curve]]:
        """What the job's run learnt, and how its stages went. Blocks."""
        place = self._jobs.place_of(job)
        found = [curve for folder in {place.out, place.notes_directory} for curve in Library(folder).curves()]
        return [c for c in found if c.unit == "steps"], [c for c in found if c.unit != "steps"]

    def _library(self, job: Job) -> Library:
        return Library(self._jobs.place_of(job).out)

    def _shelf(self, request: Request) -> Shelf:
        job = self._job(request)
        return Shelf(title=job.job, address=f"/jobs/{job.job}/out", back=f"/jobs/{job.job}", library=self._library(job))


def _rates(job: Job) -> dict[str, str]:
    """Of an evaluation, with their intervals."""
    return {f"pass@{rate['k']}": _rate(rate) for rate in job.result.get("rates", ())}


def _rate(rate: Mapping[str, Any]) -> str:
    """There is none where no attempt was graded."""
    interval = "" if rate["value"] is None else f" ({share(rate['low'])} to {share(rate['high'])})"
    return f"{share(rate['value'])}{interval}, {rate['tasks']} tasks"


def _shown(value: Any) -> str:
    return "" if value in (None, {}, []) else str(value)


def _stage_names(job: Job) -> list[str]:
    """In the order of the flow; none for a kind that no package makes any more."""
    kind = job_kinds().get(job.kind)
    return [stage.name for stage in kind.stages] if kind else []


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values in a document, by dotted name; what is a table of its own (a list of tables) is left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            if value and not any(isinstance(one, Mapping | list | tuple) for one in value):
                yield f"{prefix}{key}", ", ".join(map(str, value))
        elif value not in ("", None):
            yield f"{prefix}{key}", value


def merged_keys(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every key once, in the order of appearance."""
    return list(dict.fromkeys(key for document in documents for key in document))


def static_routes() -> list[Route]:
    """Style and script, from the package."""
    folder = resources.files("runtime.dashboard") / "static"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}

    async def send(request: Request, *, name: str) -> Response:
        return Response(files[name], media_type=_TYPES[name.rpartition(".")[2]])

    return [Route(f"/static/{name}", partial(send, name=name)) for name in files]


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def brief(seconds: float) -> str:
    """A duration that is usually short."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else age(seconds)


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def share(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"


def number(value: float) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
