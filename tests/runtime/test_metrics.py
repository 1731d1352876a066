"""The daemon's numbers, read back with Prometheus's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from runtime.daemon.records import Job
from runtime.daemon.state import DaemonState, JobState, StageState
from runtime.events import Kind, RunEvent
from runtime.limits import LimitState
from runtime.metrics import Metrics
from sandbox.spec import SandboxRecord


def event(kind: Kind, at: float, *, detail: str = "", queue: str = "") -> RunEvent:
    return RunEvent(kind=kind, run="r", at=at, stage="solve", item="1", detail=detail, queue=queue)


class Still:
    """A daemon at one moment."""

    async def state(self) -> DaemonState:
        job = Job(
            job="j1", kind="generate", settings={}, options={}, run_id="r", out="/o", state="running", created_at=1.0
        )
        stage = StageState(stage="solve", subscribes="q", ready=3, working=2, oldest_s=9.0)
        return DaemonState(
            version="1", engine="docker", draining=False, up_s=1.0, lag_p50_s=0.001, lag_p99_s=0.02,
            jobs=(JobState(job=job, stages=(stage,)),),
            limits=(LimitState(limit="run", size=4, holding=2, waiting=1, longest_wait_s=7.0),),
            sandboxes=(SandboxRecord(sandbox_id="s", engine="docker", run_id="r", purpose="p", owner="o",
                                     created_at=0.0, expires_at=1.0),),
        )  # fmt: skip


async def read(metrics: Metrics) -> dict[tuple, float]:
    """Sample name and sorted labels -> value."""
    answer = await metrics.routes()[0].endpoint(Request({"type": "http"}))
    families = text_string_to_metric_families(answer.body.decode())
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}


async def test_events_are_counted_and_attempts_timed():
    metrics = Metrics()
    metrics.listen(event(Kind.STARTED, 1.0))
    metrics.listen(event(Kind.RETRY, 3.0))
    metrics.listen(event(Kind.STARTED, 4.0))
    metrics.listen(event(Kind.DONE, 10.0))
    metrics.listen(event(Kind.SETTLED, 10.0, detail="gave_up: the engine was away", queue="rejected"))
    found = await read(metrics)
    assert found["termloom_retries_total", "solve"] == 1
    assert found["termloom_stage_done_items_total", "solve"] == 1
    assert found["termloom_rejected_items_total", "gave_up", "solve"] == 1
    assert found["termloom_ended_items_total", "rejected"] == 1
    assert found["termloom_stage_seconds_sum", "solve"] == 8.0
    assert found["termloom_stage_seconds_count", "solve"] == 2


async def test_gauges_are_read_at_the_moment_of_asking():
    metrics = Metrics()
    metrics.watch(Still())
    found = await read(metrics)
    assert found["termloom_jobs", "generate", "running"] == 1
    assert found["termloom_stage_items", "j1", "ready", "solve"] == 3
    assert found["termloom_stage_oldest_seconds", "j1", "solve"] == 9.0
    assert found["termloom_limit_claims", "run", "waiting"] == 1
    assert found["termloom_limit_longest_wait_seconds", "run"] == 7.0
    assert found["termloom_sandboxes", "docker"] == 1
    assert found["termloom_event_loop_lag_seconds", "0.99"] == 0.02
