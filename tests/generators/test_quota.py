"""Quotas: what they ask for is drawn, what cannot be filled is refused by name, and coverage is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generators.messages import Sampled
from generators.procedural.compose import compose
from generators.quota import filled, load_quotas
from generators.run import candidate_source
from runtime.cli import run
from runtime.errors import UserError
from runtime.settings import GenerateSettings, Quota
from runtime.task import write_task
from tests.generators.parts import make_certified

FILE = """
[[quotas]]
category = "archiving"
complexity = "one command"
count = 2

[[quotas]]
tier = 2
count = 3
"""


def drawn(settings: GenerateSettings) -> list[Sampled]:
    return [message for message in candidate_source(settings, "r").start() if isinstance(message, Sampled)]


def test_the_draw_fills_the_cells_and_the_rest_is_free(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text(FILE)
    quotas = load_quotas(tmp_path / "q.toml")
    items = drawn(GenerateSettings(count=7, seed=3, quotas=quotas))
    assert [message.item for message in items] == [
        "3-q1-00000", "3-q1-00001", "3-q2-00000", "3-q2-00001", "3-q2-00002", "3-00000", "3-00001",
    ]  # fmt: skip
    assert {(m.blueprint.category, m.blueprint.complexity) for m in items[:2]} == {("archiving", "one command")}
    assert {m.blueprint.tier for m in items[2:5]} == {2}
    assert len({m.blueprint.seed for m in items}) == 7
    assert items[5:] == drawn(GenerateSettings(count=2, seed=3))
    assert drawn(GenerateSettings(count=7, seed=3, quotas=quotas)) == items


def test_a_quota_may_name_a_family(tmp_path: Path) -> None:
    families = ["basics-copy", "basics-sort"]
    quotas = tuple(Quota(family=family, count=2) for family in families)
    settings = GenerateSettings(count=5, style="terse", levels=(1,), quotas=quotas)
    items = drawn(settings)
    assert [m.blueprint.families for m in items] == [*[("basics-copy",)] * 2, *[("basics-sort",)] * 2, ()]
    titles = [compose(m.blueprint).draft.title for m in items]
    assert [title.startswith(("Copy a file", "Sort lines")) for title in titles[:4]] == [True] * 4
    tasks = [{"termloom": {"drawn_category": "any", "families": [family]}} for family in (*families, "basics-copy")]
    assert filled(quotas, tasks) == [("basics-copy", 2, 2), ("basics-sort", 2, 1)]


@pytest.mark.parametrize(
    ("quotas", "told"),
    [
        ([{"count": 13}], "ask for 13 tasks, and count is 12. Give --count 13"),
        ([{"tier": 1, "count": 1}, {"tier": 1, "count": 2}], "name a cell twice: tier 1"),
        ([{"category": "astrology", "count": 1}], r"\(astrology\): 'astrology' is no category"),
        ([{"family": "basics-juggle", "count": 1}], "'basics-juggle' is no task family that is drawn"),
        ([{"family": "basics-copy", "category": "archiving", "count": 1}], "no category that is drawn"),
        ([{"complexity": "easy", "count": 1}], "'easy' is no complexity. There are 'one command'"),
        ([{"category": "archiving", "tier": 3, "count": 1}], r"\(archiving, tier 3\): no category that is drawn"),
        ([{"complexity": "one command", "count": 1}], "no level that is drawn lies in this cell"),
    ],
)
def test_a_quota_that_cannot_be_filled_is_refused(quotas: list[dict[str, object]], told: str) -> None:
    settings = GenerateSettings(levels=(2, 3), quotas=tuple(Quota.model_validate(quota) for quota in quotas))
    with pytest.raises(UserError, match=told):
        candidate_source(settings, "r")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[quotas]]\ntiers = 1\ncount = 1\n", "quotas.0.tiers"),
        ("[[quotas]]\ncount = 0\n", "quotas.0.count: 0 is refused"),
        ("[[quotas]\n", "not TOML"),
        ("count = 3\n", "quotas"),
    ],
)
def test_a_file_that_holds_no_quotas_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "q.toml").write_text(text)
    with pytest.raises(UserError, match=told) as refused:
        load_quotas(tmp_path / "q.toml")
    assert "q.toml" in str(refused.value)
    with pytest.raises(UserError, match="No such file"):
        load_quotas(tmp_path / "none.toml")


def test_coverage_counts_a_task_in_each_cell_it_lies_in() -> None:
    tasks = [
        {"category": "archiving", "termloom": {"complexity": "one command", "tier": 1}},
        {"category": "database", "termloom": {"complexity": "one command", "tier": 2}},
        {"category": "database"},
    ]
    quotas = (Quota(category="database", count=2), Quota(complexity="one command", tier=1, count=2), Quota(count=1))
    assert filled(quotas, tasks) == [("database", 2, 2), ("one command, tier 1", 2, 1), ("any task", 1, 3)]


def test_taxonomy_holds_a_folder_against_the_quotas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from generators.assemble import assemble

    solved = make_certified().solved
    write_task(assemble(solved, seed=0), tmp_path / "tasks" / "one")
    tier = solved.examined.blueprint.tier
    (tmp_path / "q.toml").write_text(f"[[quotas]]\ntier = {tier}\ncount = 1\n")
    options = ["taxonomy", "--tasks", str(tmp_path / "tasks"), "--quotas", str(tmp_path / "q.toml"), "--json"]
    assert run(options) == 0
    wanted = {"cell": f"tier {tier}", "wanted": 1, "tasks": 1}
    assert json.loads(capsys.readouterr().out)["quotas"] == [wanted]
    (tmp_path / "q.toml").write_text(f"[[quotas]]\ntier = {tier}\ncount = 2\n")
    assert run(options[:-1]) == 1
    assert f"tier {tier}" in capsys.readouterr().out


def test_a_quota_file_becomes_a_setting_that_the_run_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.toml").write_text(FILE)
    assert run(["generate", "--quotas", str(tmp_path / "q.toml"), "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["generate.quotas"]
    assert [(quota["category"], quota["tier"], quota["count"]) for quota in shown] == [("archiving", 0, 2), ("", 2, 3)]
