"""Settings: one tree, four sources, and errors that say where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from runtime.errors import UserError
from runtime.settings import Settings, load_settings
from sandbox.spec import Limits


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TERMLOOM_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_each_key_has_its_own_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = toml(tmp_path, "[limits]\nbuild = 3\ncreate = 3\nrun = 3\n")
    monkeypatch.setenv("TERMLOOM_LIMITS__BUILD", "4")
    monkeypatch.setenv("TERMLOOM_LIMITS__CREATE", "4")
    settings = load_settings(config=config, sets=["limits.build=5", "limits.build=6"])
    assert settings.limits.sizes() == {"build": 6, "create": 4, "run": 3, "grade": 2, "chat": 32, "score": 2}


@pytest.mark.parametrize("source", ["set", "environment", "file"])
def test_a_relative_list_of_ngrams_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str):
    monkeypatch.chdir(tmp_path)
    config, sets = None, []
    if source == "set":
        sets = ["generate.overlap=grams"]
    elif source == "environment":
        monkeypatch.setenv("TERMLOOM_GENERATE__OVERLAP", "grams")
    else:
        config = toml(tmp_path, '[generate]\noverlap = "grams"\n')
    assert load_settings(config=config, sets=sets).generate.overlap == tmp_path / "grams"
    assert load_settings(sets=["generate.overlap=/grams"]).generate.overlap == Path("/grams")


def test_the_defaults_look_at_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERMLOOM_LIMITS__BUILD", "4")
    assert Settings().limits.build == 2
    assert load_settings().limits.build == 4


def test_nested_sections_lists_and_tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERMLOOM_SANDBOX__LIMITS__MEMORY_MB", "512")
    settings = load_settings(sets=['chat.prices={"gpt-4.1": {"prompt": 2, "completion": 8}}', "chat.budget_cost=2.5"])
    assert settings.sandbox.limits.limits() == Limits(memory_mb=512)
    assert settings.chat.prices["gpt-4.1"].completion == 8
    assert settings.chat.budget_cost == 2.5


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["limits.bild=4"], "--set limits.bild: unknown setting 'limits.bild'. Did you mean 'limits.build'?"),
        (["limit.build=4"], "--set limit: unknown setting 'limit'. Did you mean 'limits'?"),
        (["sandbox.limits.memroy_mb=4"], "Did you mean 'sandbox.limits.memory_mb'?"),
        (["limits.build=0"], "--set limits.build: '0' is refused: input should be greater than 0"),
        (["sandbox.engine=podman"], "--set sandbox.engine: 'podman' is refused: input should be 'auto', 'docker'"),
        (["limits"], "--set limits: not of the form section.key=value"),
        (["limits=4"], "--set limits: '4' is refused"),
        (["limits=4", "limits.build=4"], "'limits' was set to a value before"),
        (["chat.prices={"], "--set chat.prices={: not JSON"),
        (['chat.prices={"m": {"prompt": -1, "completion": 0}}'], "--set chat.prices.m.prompt: -1 is refused"),
    ],
)
def test_a_wrong_option_is_named(sets: list[str], message: str):
    with pytest.raises(UserError) as caught:
        load_settings(sets=sets)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TERMLOOM_LIMITS__BILD", "4", "TERMLOOM_LIMITS__BILD: unknown setting 'limits.bild'"),
        ("TERMLOOM_LIMTS__BUILD", "4", "unknown setting 'limts'. Did you mean 'limits'?"),
        ("TERMLOOM_LIMITS__BUILD", "many", "TERMLOOM_LIMITS__BUILD: 'many' is refused: input should be a valid"),
        ("TERMLOOM_CHAT__PRICES", "{", "environment: error parsing value for field \"chat\""),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        load_settings()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nbild = 1", "config.toml: limits.bild: unknown setting 'limits.bild'. Did you mean"),
        ("[limits]\nbuild = -1", "config.toml: limits.build: -1 is refused"),
        ("[limits\nbuild = 1", "config.toml: not TOML:"),
        (
            "zzz = 1",
            "unknown setting 'zzz'. Known are agent, band, chat, daemon, export, generate, limits, paths, sandbox",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str):
    with pytest.raises(UserError) as caught:
        load_settings(config=toml(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere\.toml: No such file"):
        load_settings(config=tmp_path / "nowhere.toml")


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERMLOOM_CHAT__API_KEY", "sk-very-secret")
    settings = load_settings()
    assert settings.chat.api_key.get_secret_value() == "sk-very-secret"
    shown = settings.masked_json() + repr(settings) + repr(settings.effective())
    assert "very-secret" not in shown
    assert settings.effective()["chat.api_key"] == "**********"
    with pytest.raises(UserError) as caught:
        load_settings(sets=['chat.api_key=["sk-very-secret"]'])
    assert "very-secret" not in str(caught.value)


def test_the_tree_is_frozen():
    with pytest.raises(ValidationError):
        Settings().limits.build = 4
    with pytest.raises(ValidationError):
        Settings().limits = None


def test_directories_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert load_settings().paths.state == tmp_path / ".local/state/termloom"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert str(load_settings().paths.state) == "/xdg/termloom"
    monkeypatch.setenv("TERMLOOM_STATE", "/own")
    assert str(load_settings().paths.state) == "/own"
    assert str(load_settings(sets=["paths.state=/set"]).paths.state) == "/set"
