"""Rates as pages show them, without a browser."""

from __future__ import annotations

import pytest

from runtime.daemon.records import Job
from runtime.dashboard.pages import Templates, _rates

GRADED = {"k": 1, "value": 0.5, "low": 0.25, "high": 0.75, "tasks": 4}
NOTHING = {"k": 1, "value": None, "low": None, "high": None, "tasks": 0}


def job(rate: dict) -> Job:
    return Job(
        job="j1",
        kind="evaluate",
        settings={},
        options={},
        run_id="evaluate-1",
        out="/out",
        state="finished",
        created_at=0.0,
        result={"rates": [rate]},
    )


@pytest.mark.parametrize(
    ("rate", "told"),
    [(GRADED, "50.0 % (25.0 % to 75.0 %), 4 tasks"), (NOTHING, "not measured, 0 tasks")],
)
def test_a_rate_of_nothing_is_no_measured_zero(rate, told):
    assert _rates(job(rate)) == {"pass@1": told}
    text = Templates(home=True)._environment.from_string("{{ value | share }}").render(value=rate["value"])
    assert told.startswith(text)
