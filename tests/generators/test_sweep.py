"""The sweep: tasks of families certify for real, what does not is told, and a stopped sweep goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from generators.messages import Certified
from generators.procedural.compose import compose
from generators.procedural.library import FAMILIES, named
from generators.sweep import blueprints, by_family, show, sweep
from generators.taxonomy import load_taxonomy
from runtime.settings import load_settings
from runtime.stage import Message, Rejected
from runtime.store import Store
from tests.generators.parts import RUN
from tests.generators.running import namespace_engine


def test_each_family_has_all_its_depths_and_all_styles() -> None:
    items = blueprints(FAMILIES, 20)
    assert len({item for item, _ in items}) == len(items) == 20 * len(FAMILIES)
    csv = [blueprint for item, blueprint in items if item.startswith("csv-filter-")]
    assert {compose(blueprint).pieces[0].family for blueprint in csv} == {"csv-filter"}
    assert {blueprint.level for blueprint in csv} == set(named("csv-filter").depths)
    assert {blueprint.style for blueprint in csv} == set(load_taxonomy().styles.names)
    assert len({compose(blueprint).reference.commands for blueprint in csv}) == 20


@pytest.mark.namespace
async def test_a_family_certifies_and_is_not_tried_twice(tmp_path: Path) -> None:
    settings = load_settings(sets=[f"paths.state={tmp_path}"])
    items = blueprints([named("basics-move")], 2)
    started: list[str] = []
    async with namespace_engine(tmp_path / "engine") as engine, Store(tmp_path / "sweep.sqlite") as store:
        for _ in range(2):
            ends = await sweep(
                items,
                engine=engine,
                store=store,
                settings=settings,
                on_event=lambda event: started.append(event.item) if event.kind == "started" else None,
            )
            assert [type(end) for end in ends] == [Certified, Certified]
    assert len(started) == 2 * 6


def test_the_table_tells_what_was_rejected_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    csv, sed = named("csv-filter"), named("sed-edit")
    ends: list[Message] = [
        Rejected(item="csv-filter-000", run_id=RUN, stage="certify", reason="flaky", detail="now and then"),
    ]
    yields = by_family([csv, sed], ends)
    assert [(y.family, y.certified, y.rejected) for y in yields] == [
        ("csv-filter", 0, {"certify: flaky": 1}),
        ("sed-edit", 0, {}),
    ]
    assert show(yields, seeds=1) == 1
    shown = capsys.readouterr().out
    assert "csv-filter-000: flaky: now and then" in shown
    assert "0 tasks of 2 families certified, 1 rejected, 1 left" in shown
