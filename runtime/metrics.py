"""Prometheus metrics of the daemon, at `/metrics`. Names, units and labels are in docs/design/daemon.md.

Counters grow with the events of the runs; gauges are read when somebody asks, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.chat.notes import CallNote
from runtime.chat.tally import status_of
from runtime.daemon.state import DaemonState, Reporter
from runtime.events import Kind, RunEvent

_STAGE_BUCKETS = (0.01, 0.05, 0.2, 1.0, 5.0, 20.0, 60.0, 300.0, 1200.0)
_CALL_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """One registry a daemon."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._done = self._counter("stage_done_items", "Items that a stage is done with.", "stage")
        self._rejected = self._counter(
            "rejected_items", "Items at their end, by the reason's class.", "stage", "reason"
        )
        self._ended = self._counter("ended_items", "Items at their end, by the queue they ended in.", "queue")
        self._retries = self._counter("retries", "Attempts that infrastructure failed.", "stage")
        self._faults = self._counter("faults", "Attempts that a bug failed.", "stage")
        self._stalls = self._counter("stalls", "Times that an item was reported as not moving.", "stage")
        self._took = Histogram(
            "termloom_stage_seconds",
            "Time of one attempt in a stage, waiting for limits included.",
            ["stage"],
            buckets=_STAGE_BUCKETS,
            registry=self._registry,
        )
        self._calls = self._counter("model_calls", "Tries of model calls, by what came back.", "purpose", "status")
        self._tokens = self._counter("model_tokens", "Tokens of answered calls.", "purpose", "direction")
        self._cost = self._counter("model_cost", "Cost of answered calls, in the currency of the prices.", "purpose")
        self._latency = Histogram(
            "termloom_model_call_seconds",
            "Time of one answered try, without the wait at our own gate.",
            ["purpose"],
            buckets=_CALL_BUCKETS,
            registry=self._registry,
        )
        self._started: dict[tuple[str, str, str], float] = {}
        self._reporter: Reporter | None = None
        self._snapshot = _Snapshot()
        self._registry.register(self._snapshot)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"termloom_{name}", help_, labels, registry=self._registry)

    def watch(self, reporter: Reporter) -> None:
        """Where the gauges come from."""
        self._reporter = reporter

    def listen(self, event: RunEvent) -> None:
        """Of every run."""
        key = (event.run, event.item, event.stage)
        match event.kind:
            case Kind.STARTED:
                self._started[key] = event.at
            case Kind.DONE:
                self._done.labels(event.stage).inc()
            case Kind.RETRY:
                self._retries.labels(event.stage).inc()
            case Kind.FAULT:
                self._faults.labels(event.stage).inc()
            case Kind.STALLED:
                self._stalls.labels(event.stage).inc()
            case Kind.SETTLED:
                self._ended.labels(event.queue).inc()
                if event.detail:
                    self._rejected.labels(event.stage, event.detail.partition(":")[0]).inc()
        if event.kind in (Kind.DONE, Kind.RETRY, Kind.FAULT) and (started := self._started.pop(key, None)) is not None:
            self._took.labels(event.stage).observe(max(0.0, event.at - started))

    def called(self, note: CallNote) -> None:
        """Of every model call of a job."""
        self._calls.labels(note.purpose, status_of(note)).inc()
        if note.answered:
            self._latency.labels(note.purpose).observe(note.latency_s)
            self._tokens.labels(note.purpose, "prompt").inc(note.prompt_tokens)
            self._tokens.labels(note.purpose, "completion").inc(note.completion_tokens)
            self._cost.labels(note.purpose).inc(note.cost)

    def routes(self) -> list[Route]:
        return [Route("/metrics", self._show, methods=["GET"])]

    async def _show(self, _: Request) -> Response:
        if self._reporter is not None:
            self._snapshot.state = await self._reporter.state()
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class _Snapshot(Collector):
    """The gauges of one moment."""

    def __init__(self) -> None:
        self.state: DaemonState | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if self.state is None:
            return
        yield from _of_limits(self.state)
        yield from _of_jobs(self.state)
        yield from _of_queues(self.state)
        yield _of_training(self.state)
        sandboxes = GaugeMetricFamily("termloom_sandboxes", "Sandboxes that the engine holds.", labels=["engine"])
        if not self.state.sandboxes_unknown:
            sandboxes.add_metric([self.state.engine], len(self.state.sandboxes))
        yield sandboxes
        lag = GaugeMetricFamily(
            "termloom_event_loop_lag_seconds", "How late timers fire, over ten minutes.", labels=["quantile"]
        )
        lag.add_metric(["0.5"], self.state.lag_p50_s)
        lag.add_metric(["0.99"], self.state.lag_p99_s)
        yield lag


def _of_limits(state: DaemonState) -> Iterator[GaugeMetricFamily]:
    size = GaugeMetricFamily("termloom_limit_size", "Places of a limit.", labels=["limit"])
    claims = GaugeMetricFamily("termloom_limit_claims", "Who holds or waits.", labels=["limit", "state"])
    wait = GaugeMetricFamily("termloom_limit_longest_wait_seconds", "The longest wait now.", labels=["limit"])
    for limit in state.limits:
        size.add_metric([limit.limit], limit.size)
        claims.add_metric([limit.limit, "holding"], limit.holding)
        claims.add_metric([limit.limit, "waiting"], limit.waiting)
        wait.add_metric([limit.limit], limit.longest_wait_s)
    yield from (size, claims, wait)


def _of_jobs(state: DaemonState) -> Iterator[GaugeMetricFamily]:
    jobs = GaugeMetricFamily("termloom_jobs", "Jobs by state.", labels=["kind", "state"])
    counts: dict[tuple[str, str], int] = {}
    for job in state.jobs:
        key = (job.job.kind, job.job.state)
        counts[key] = counts.get(key, 0) + 1
    for labels, count in counts.items():
        jobs.add_metric(list(labels), count)
    yield jobs
    items = GaugeMetricFamily("termloom_stage_items", "Items in a stage.", labels=["job", "stage", "state"])
    oldest = GaugeMetricFamily("termloom_stage_oldest_seconds", "Age of the oldest item.", labels=["job", "stage"])
    for job in state.jobs:
        for stage in job.stages if job.job.state == "running" else ():
            items.add_metric([job.job.job, stage.stage, "ready"], stage.ready)
            items.add_metric([job.job.job, stage.stage, "delayed"], stage.delayed)
            items.add_metric([job.job.job, stage.stage, "working"], stage.working)
            oldest.add_metric([job.job.job, stage.stage], stage.oldest_s)
    yield from (items, oldest)


def _of_queues(state: DaemonState) -> Iterator[GaugeMetricFamily]:
    messages = GaugeMetricFamily(
        "termloom_bus_messages", "Messages of a queue between machines.", labels=["queue", "state"]
    )
    oldest = GaugeMetricFamily("termloom_bus_oldest_seconds", "Age of the oldest message.", labels=["queue"])
    for queue in state.queues:
        for name in ("ready", "leased", "delayed", "dead"):
            messages.add_metric([queue.queue, name], getattr(queue, name))
        oldest.add_metric([queue.queue], queue.oldest_s)
    yield from (messages, oldest)


def _of_training(state: DaemonState) -> GaugeMetricFamily:
    newest = GaugeMetricFamily(
        "termloom_training", "Metrics of the newest step of a training job.", labels=["job", "metric"]
    )
    for job in state.jobs:
        for name, value in job.numbers.items() if job.job.state == "running" else ():
            newest.add_metric([job.job.job, name], value)
    return newest
