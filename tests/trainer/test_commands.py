"""The commands as a person types them: a policy and a chat model measured, a dry run, mistakes answered in one line."""

import json
from pathlib import Path

import pytest

from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from runtime.cli import run
from runtime.errors import UserError
from tests.trainer.world import make_model, make_task
from trainer import commands
from trainer.commands import evaluate, train
from trainer.evaluate import read_evaluation, read_trajectories

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = """
name = "tiny"
model = { name = "tiny", chat_format = "small" }
agent = { max_turns = 2, max_tokens_per_turn = 16, context_tokens = 3000, min_answer_tokens = 8 }
[rollout]
group_size = 2
groups = 1
[train]
epochs = 1
[evaluate]
agent = { max_turns = 1 }
[serve]
engine = "torch"
[ppo]
policy_minibatch = 2
critic_minibatch = 2
row_tokens = 6000
"""


def test_a_dry_run_shows_every_number_and_what_it_needs(capsys):
    assert run(["train", str(RECIPES / "endless-terminals-qwen2.5-7b.toml"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "ppo.clip_high = 0.28" in out
    assert "28.4 GiB  policy: weights, float32" in out
    assert "devices of 80 GB: 5 for the learner, 4 for the engines" in out
    assert "python -m sglang.launch_server" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "nowhere.toml"], "nowhere.toml: No such file"),
        (["train", str(RECIPES / "endless-terminals-qwen2.5-7b.toml")], "--model: the recipe names no directory"),
        (["evaluate"], "no task is named"),
        (["evaluate", "nowhere"], "nowhere: holds no task"),
        (["rollout", "nowhere", "--recipe", "nowhere.toml"], "nowhere.toml: No such file"),
        (["compare", "nowhere", "nowhere"], "nowhere: No such file"),
    ],
)
def test_a_mistake_is_answered_in_one_line(capsys, arguments, told):
    assert run(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--max-turns", "0"], "--max-turns: 0 is refused: input should be greater than or equal to 1"),
        (["--temperature", "-1"], "--temperature: -1 is refused: input should be greater than or equal to 0"),
        (["--out", "FILE"], "FILE: is a file, and no directory. Choose another --out"),
        (["--out", "FILE/below"], "FILE: is a file, and no directory. Choose another --out"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_begun(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.setattr(commands, "find_client", lambda state: pytest.fail("a job is submitted"))
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    make_task(tmp_path / "tasks", "a")
    assert run(["evaluate", "tasks", "--base-url", "http://127.0.0.1:9", "--model", "m", *options]) == 2
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FILE", "tasks"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--recipe", str(RECIPES / "small-cpu.toml")], "--policy: the recipe names no directory of a model"),
        (["--recipe", str(RECIPES / "small-cpu.toml"), "--base-url", "http://x"], "--base-url: names an endpoint, and"),
        (["--engine-url", "http://x", "--base-url", "http://x", "--model", "m"], "--engine-url: needs --recipe"),
    ],
)
def test_who_is_to_be_measured_is_said_once(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.setattr(commands, "find_client", lambda state: pytest.fail("a job is submitted"))
    make_task(tmp_path / "tasks", "a")
    assert run(["evaluate", str(tmp_path / "tasks"), "--out", str(tmp_path / "out"), *options]) == 2
    assert told in capsys.readouterr().err


def test_comparing_can_be_a_dry_run(capsys):
    assert run(["compare", "nowhere", "nowhere", "--dry-run"]) == 0
    assert "sandbox" in capsys.readouterr().out


def test_a_run_of_training_in_a_file_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    (tmp_path / "FILE").touch()
    make_task(tmp_path / "tasks", "a")
    command = ["train", str(RECIPES / "small-cpu.toml"), "--tasks", str(tmp_path / "tasks"), "--model", str(tmp_path)]
    assert run([*command, "--out", str(tmp_path / "FILE"), "--here"]) == 2
    assert "FILE: is a file, and no directory. Choose another --out" in capsys.readouterr().err


async def test_a_team_leads_itself_though_a_daemon_works(tmp_path, monkeypatch):
    async def here(wanted, settings, *, as_json):
        return 7

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(commands, "find_client", lambda state: pytest.fail("the daemon is asked"))
    monkeypatch.setattr(commands, "_train_here", here)
    make_task(tmp_path / "tasks", "a")
    assert await train(RECIPES / "small-cpu.toml", tasks=[tmp_path / "tasks"], model=tmp_path) == 7


@pytest.mark.namespace
def test_a_server_that_cannot_be_reached_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    make_task(tmp_path / "tasks", "a")
    (tmp_path / "tiny.toml").write_text(TINY.replace('engine = "torch"', 'engine = "sglang"'))
    command = ["train", str(tmp_path / "tiny.toml"), "--tasks", str(tmp_path / "tasks"), "--sandbox"]
    command += ["namespace", "--model", str(make_model(tmp_path / "model")), "--out", str(tmp_path / "run"), "--here"]
    assert run([*command, "--engine-url", "http://127.0.0.1:9"]) == 1
    assert "termloom: policy http://127.0.0.1:9: /model_info: Cannot connect" in capsys.readouterr().err


@pytest.mark.namespace
async def test_a_chat_model_is_measured_and_a_second_look_pays_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TERMLOOM_AGENT__KIND", "memory")
    task = make_task(tmp_path / "tasks", "a")
    script = [Reply(text="<command>echo a > a.txt</command>"), Reply(text="<action>done</action>")]
    async with ScriptedServer(script) as server:
        for _ in range(2):
            got = await evaluate(
                task, base_url=server.base_url, model="any", sandbox="namespace", out=tmp_path / "out", max_turns=5
            )
            assert got == 0
        with pytest.raises(
            UserError, match=r"model was 'any' at .* and is now 'other' at .*; settings.max_turns was 5"
        ):
            await evaluate(task, base_url=server.base_url, model="other", sandbox="namespace", out=tmp_path / "out")
        assert server.calls["evaluate"] == 2
    assert "pass@1: 100.0% (100.0% to 100.0%) over 1 tasks" in capsys.readouterr().out
    result = read_evaluation(tmp_path / "out")
    assert (result.settings["max_turns"], result.settings["kind"]) == (5, "memory")
    assert (result.model, result.served_by, result.context_overflow) == ("any", "endpoint", "grade")
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.namespace
@pytest.mark.slow
def test_a_run_by_its_recipe_then_rolled_out_and_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERMLOOM_STATE", str(tmp_path / "state"))
    make_task(tmp_path / "tasks", "a")
    model = make_model(tmp_path / "model")
    (tmp_path / "tiny.toml").write_text(TINY)
    recipe, tasks, out = str(tmp_path / "tiny.toml"), str(tmp_path / "tasks"), str(tmp_path / "run")
    base = ["--sandbox", "namespace", "--json"]
    started = ["train", recipe, "--tasks", tasks, "--held-out", tasks, "--model", str(model), "--out", out, *base]
    assert run(started) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines[:-1]] == [1]
    assert Path(lines[-1]["report"]).exists()
    assert run(started) == 2
    assert "Use --resume" in capsys.readouterr().err
    assert run([*started, "--resume"]) == 0
    policy = ["--policy", lines[-1]["policy"], "--recipe", recipe]
    assert run(["rollout", tasks, *policy, "--out", str(tmp_path / "rolled"), *base]) == 0
    rolled = read_trajectories(tmp_path / "rolled")
    assert [len(t.turns) for t in rolled] == [2, 2]
    assert all(turn.tokens is not None for t in rolled for turn in t.turns)
    for _ in range(2):
        assert run(["evaluate", tasks, *policy, "--out", str(tmp_path / "measured"), *base]) == 0
    got = read_evaluation(tmp_path / "measured")
    assert (got.settings["max_turns"], got.seed, got.served_by) == (1, 42, "torch")
    assert got.weights
    capsys.readouterr()
    other = ["--policy", str(make_model(tmp_path / "other", seed=1)), "--recipe", recipe]
    for command, out in (("rollout", "rolled"), ("evaluate", "measured")):
        assert run([command, tasks, *other, "--out", str(tmp_path / out), *base]) == 2
        assert "holds a run of something else: model was" in capsys.readouterr().err
