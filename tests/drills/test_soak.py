"""Twenty seconds of the soak: `python -m bench soak` runs the same for as long as it is asked to."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

from bench.faulty import Chances, sown
from bench.soak import descriptors, open_ground, soak
from sandbox.basebuild import default_cache
from tests.machine import absent, base_environment, need_namespaces

ITEMS = 500
MORE = Chances(retry=0.05, bug=0.02, hang=0.002, lost_ack=0.05, lost_sandbox=0.3, slow=0.01, sandbox=0.08)


@pytest.mark.namespace
@pytest.mark.nats
@pytest.mark.parametrize("bus", ["memory", "nats"])
async def test_a_soak_loses_nothing_and_keeps_nothing(bus: str):
    need_namespaces()
    if shutil.which("nats-server") is None:
        absent("no nats-server on the path")
    base_environment()
    async with open_ground(bus, cache=default_cache(os.environ), url="") as ground:
        before = descriptors()
        got = await soak(items=ITEMS, minutes=0.08, seed=7, chances=MORE, deadline_s=5.0, **ground)
        assert descriptors() <= before
    assert got.ends == Counter(sown(number).item for number in range(ITEMS))
    assert got.result.pending == got.sandboxes_left == 0
    assert got.rejected == {"round_number": ITEMS // 50}
    assert all(got.injected[fault] for fault in ("retry", "bug", "hang", "lost ack", "lost sandbox", "slow"))
    assert got.told["retry"] >= got.injected["retry"] + got.injected["hang"]
    assert got.told["fault"] == got.injected["bug"]
    assert got.commands >= 20
    assert max(got.samples.rss_mib) < got.samples.settled(got.samples.rss_mib)[1][0] + 24
