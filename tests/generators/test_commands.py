"""The commands from outside: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generators.assemble import assemble
from generators.outdir import place_of
from generators.report import show_summary, show_verification
from generators.run import Begun, open_players, resumed
from generators.summary import summarise
from runtime.cli import run
from runtime.errors import UserError
from runtime.runner import RunResult
from runtime.settings import GenerateSettings, load_settings
from runtime.store import Store
from runtime.task import write_task
from tests.generators.parts import make_solved


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_taxonomy_shows_the_axes_and_the_coverage_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(assemble(make_solved(), seed=0), tmp_path / "tasks" / "one")
    assert run(["taxonomy", "--tasks", str(tmp_path / "tasks")]) == 0
    shown = capsys.readouterr().out
    assert "62 categories, 6 complexities, 54 scenarios, 3 tiers, 11 areas, 16 tool groups" in shown
    assert "1 tasks cover 1 of 62 categories" in shown


def test_taxonomy_names_a_task_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "task.toml").write_text("[")
    assert run(["taxonomy", "--tasks", str(tmp_path)]) == 1
    assert "broken: " in capsys.readouterr().out


def test_taxonomy_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["taxonomy", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["categories"]) == 62
    assert {"name": "ssh-access", "category": "hardening", "levels": [1, 2, 3, 4]} in shown["families"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--category", "astrology"], "no task family makes 'astrology'"),
        (["--author", "chat", "--category", "astrology"], "'astrology' is no category"),
        (["--level", "11"], "11 is no level"),
        (["--author", "chat"], "chat.base_url: is not set. Give --base-url"),
        (["--set", "generate.overlap=/no/such/list"], "/no/such/list: is no list of n-grams"),
        (["--overlap", "/no/such/list"], "/no/such/list: is no list of n-grams"),
        (["--band", "7/8..1/8"], "'7/8..1/8' is no band of pass rates"),
        (["--band-model", "m"], "--band-model: measures nothing without a band. Give --band"),
        (["--band", "1/8..7/8", "--band-model", "m"], "band.base_url: is not set. Give --band-base-url"),
        (["--band", "1/8..7/8", "--band-base-url", "http://x"], "generate.band_model: is not set. Give --band-model"),
        (["--count", "0"], "greater than 0"),
        (["--resume"], "no run that could be resumed"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_begun(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    out = tmp_path / "out"
    assert run(["generate", "--out", str(out), *options]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()
    assert not state.exists()


def test_verify_wants_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify"]) == 2
    assert "no directory is named" in capsys.readouterr().err


def test_verification_fails_when_one_certificate_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_verification({Path("a"): [], Path("b"): ["x was changed", "two\nlines"]}, as_json=False) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a: holds",
        "b: x was changed; two lines",
        "1 of 2 tasks hold",
    ]
    assert show_verification({Path("a"): []}, as_json=True) == 0


def test_what_a_task_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_verification({Path("a\x1b[2J"): ["its log: \x1b]0;pwned\x07"]}, as_json=False)
    shown = capsys.readouterr().out
    assert "pwned" in shown
    assert "\x1b" not in shown


def test_fewer_tasks_than_asked_for_are_a_failure_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = RunResult(state="drained", admitted=2, terminal=1, pending=1, reason="asked to")
    place = place_of(tmp_path / "out", tmp_path / "state")
    assert show_summary(summarise([], [], wanted=1), result, place, as_json=False) == 1
    assert f"go on with --resume --out {place.out}" in capsys.readouterr().out


def begun(*sets: str) -> Begun:
    settings = load_settings(sets=sets)
    return Begun(generate=settings.generate, agent=settings.agent)


def test_a_resumed_run_keeps_the_agent_it_began_with() -> None:
    memory = begun("generate.author=chat", "agent.kind=memory")
    then = Begun.read(memory.model_dump_json(), begun())
    assert then == memory
    assert resumed(begun("generate.author=chat"), then, ()).over(load_settings()).agent.kind == "memory"
    with pytest.raises(UserError, match=r"agent\.kind: is 'terminus-2', but the run began with 'memory'"):
        resumed(begun("agent.kind=terminus-2"), then, ())


def test_a_relative_list_of_ngrams_is_the_same_one_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = begun("generate.overlap=lists/grams")
    recorded = now.model_dump_json()
    assert str(tmp_path / "lists" / "grams") in recorded
    relative = recorded.replace(str(tmp_path / "lists" / "grams"), "lists/grams")
    for record in (recorded, relative):
        then = Begun.read(record, now)
        assert resumed(now, then, ["overlap"]) == resumed(begun(), then, ()) == now
    monkeypatch.chdir("/")
    then = Begun.read(recorded, now)
    assert resumed(begun(), then, ()) == now
    with pytest.raises(UserError, match=r"generate\.overlap: .*/other'\), but the run began with .*/lists/grams"):
        resumed(begun("generate.overlap=other"), then, ["overlap"])


def test_a_run_without_agents_may_be_resumed_with_any() -> None:
    assert resumed(begun("agent.kind=memory"), begun(), ()).agent.kind == "memory"


def test_a_record_that_names_no_agent_is_read_with_the_present_one() -> None:
    earlier = GenerateSettings(author="chat", count=3)
    now = begun("agent.kind=memory")
    assert Begun.read(earlier.model_dump_json(), now) == Begun(generate=earlier, agent=now.agent)


async def test_a_resumed_run_measures_the_policy_it_began_with(tmp_path: Path) -> None:
    ours = GenerateSettings(band="1/8..7/8", band_model="small")
    here = load_settings(sets=["band.base_url=http://127.0.0.1:1/v1", "band.temperature=0.5"])
    async with Store(tmp_path / "store.sqlite") as store:
        async with open_players(ours, here, store) as players:
            assert (players.name, players.measured_name) == ("procedural", "small")
            assert players.measured is not None
        with pytest.raises(UserError, match=r"band\.base_url: is not set. Give --band-base-url"):
            async with open_players(ours, load_settings(), store):
                pass
        with pytest.raises(UserError, match=r"chat\.base_url"):
            async with open_players(GenerateSettings(author="chat"), load_settings(), store):
                pass
