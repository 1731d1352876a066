"""The comparison with small numbers: both runs train on as many samples, and say what they were like."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.asynchrony import Times, measure
from runtime.settings import PathSettings

TINY = Times(samples=8, batch=4, bounds=(2,), concurrency=8, median_s=0.01, update_s=0.05)


@pytest.mark.namespace
@pytest.mark.slow
async def test_both_ways_in_real_sandboxes(tmp_path: Path) -> None:
    told: list[str] = []
    ratio = await measure("namespace", TINY, cache=PathSettings().cache, state=tmp_path, say=told.append)
    synchronous, asynchronous = (line.split() for line in told[-2:])
    assert (synchronous[0], synchronous[4], synchronous[5], synchronous[6]) == ("0", "0.00", "0", "1.00")
    assert (asynchronous[0], asynchronous[6]) == ("2", f"{ratio:.2f}")
    assert 0.0 <= float(asynchronous[4]) <= 2.0
