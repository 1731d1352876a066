"""What a daemon says of itself when its engine or its bus does not answer: everything else, and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from runtime import control
from runtime.daemon.api import told
from runtime.daemon.spread import Here
from runtime.daemon.state import Queues, Reporter
from runtime.dashboard.pages import Pages, Templates
from runtime.errors import BusClosed, BusSilent
from runtime.limits import Limits
from runtime.metrics import Metrics
from runtime.watchdog import LagGauge
from sandbox.errors import EngineFault
from tests.runtime.daemon.test_jobs import DeafEngine, jobs_of

REASON = "docker: list failed: no answer"
SILENT = BusSilent("generate-solve", "nats: timeout")


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    jobs = jobs_of(tmp_path)
    return Pages(jobs=jobs, reporter=reporter_of(jobs))


def reporter_of(jobs, *, queues: Queues | None = None) -> Reporter:
    limits, queues = Limits({"run": 4}), queues or Here().queues
    return Reporter(jobs, engine=DeafEngine(), limits=limits, lag=LagGauge(), queues=queues)


async def silent():
    raise SILENT


async def test_the_state_holds_all_but_the_sandboxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    state = await reporter_of(jobs_of(tmp_path)).state()
    assert (state.sandboxes, state.sandboxes_unknown) == ((), REASON)
    assert [limit.limit for limit in state.limits] == ["run"]
    control._show_ps(msgspec.to_builtins(state))
    shown = capsys.readouterr().out
    assert "docker engine, unknown sandboxes" in shown
    assert REASON in shown


async def test_the_overview_shows_the_reason_and_does_not_say_that_there_are_none(pages: Pages):
    page = (await pages.overview(Request({"type": "http"}))).body.decode()
    assert REASON in page
    assert '<p class="empty">None.</p>' not in page


async def test_no_number_of_sandboxes_is_measured(tmp_path: Path):
    metrics = Metrics()
    metrics.watch(reporter_of(jobs_of(tmp_path)))
    answer = await metrics.routes()[0].endpoint(Request({"type": "http"}))
    families = {family.name: family.samples for family in text_string_to_metric_families(answer.body.decode())}
    assert families["termloom_sandboxes"] == []
    assert families["termloom_limit_size"] != []


@pytest.mark.parametrize("fault", [SILENT, BusClosed("generate-solve")])
async def test_the_state_holds_all_but_the_queues_of_a_silent_bus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Exception
):
    async def queues():
        raise fault

    state = await reporter_of(jobs_of(tmp_path), queues=queues).state()
    assert (state.queues, state.queues_unknown) == ((), str(fault))
    assert [limit.limit for limit in state.limits] == ["run"]
    control._show_ps(msgspec.to_builtins(state))
    assert f"the bus does not say what its queues hold: {fault}" in capsys.readouterr().out


async def test_the_overview_shows_why_the_queues_are_unknown(tmp_path: Path):
    jobs = jobs_of(tmp_path)
    pages = Pages(jobs=jobs, reporter=reporter_of(jobs, queues=silent))
    page = (await pages.overview(Request({"type": "http"}))).body.decode()
    assert "nats: timeout" in page.partition("<h1>Other machines</h1>")[2]


async def test_no_number_of_messages_is_measured_on_a_silent_bus(tmp_path: Path):
    metrics = Metrics()
    metrics.watch(reporter_of(jobs_of(tmp_path), queues=silent))
    answer = await metrics.routes()[0].endpoint(Request({"type": "http"}))
    families = {family.name: family.samples for family in text_string_to_metric_families(answer.body.decode())}
    assert families["termloom_bus_messages"] == []
    assert families["termloom_limit_size"] != []


async def deaf(_: Request):
    raise EngineFault("docker", "list", "no answer")


async def test_an_engine_that_fails_a_request_is_told_with_a_remedy():
    answer = await told(deaf)(Request({"type": "http"}))
    assert answer.status_code == 500
    assert msgspec.json.decode(answer.body)["problem"] == REASON
    page = await Templates(home=True).safely(deaf)(Request({"type": "http"}))
    assert page.status_code == 500
    assert REASON in page.body.decode()
