"""A whole run, small: real tasks in real sandboxes, demonstrations, fine-tuning, PPO, evaluation, report."""

from dataclasses import replace

import msgspec
import pytest

from runtime.agent.scripted import ScriptedPolicy
from runtime.errors import UserError
from runtime.trajectory import Trajectory, encode
from sandbox.spec import FailureClass, Verdict
from tests.trainer.world import limits, make_model, make_task, open_world
from trainer.evaluate import rate, read_evaluation
from trainer.loop import Missing
from trainer.metrics import read_metrics
from trainer.model import load_model
from trainer.ppo import PPOConfig
from trainer.recipe import EvaluateTable, ModelTable, Recipe, RolloutTable, ServeTable, TrainTable, check
from trainer.report import write_report
from trainer.sft import SFTConfig
from trainer.training import Inputs, Tools, learnable, run_training

pytestmark = [pytest.mark.namespace, pytest.mark.slow]

RECIPE = Recipe(
    name="tiny",
    seed=1,
    model=ModelTable(name="tiny", chat_format="small"),
    agent={
        "max_turns": 2,
        "max_tokens_per_turn": 48,
        "context_tokens": 3000,
        "min_answer_tokens": 8,
        "max_malformed": 3,
    },
    rollout=RolloutTable(group_size=4, groups=1, concurrency=4),
    train=TrainTable(epochs=2, checkpoint_every=1, checkpoint_keep=2, evaluate_every=0),
    evaluate=EvaluateTable(attempts=2, agent={"max_turns": 2}),
    serve=ServeTable(engine="torch", max_running=4),
    sft=SFTConfig(learning_rate=1e-2, epochs=60, batch=1, max_tokens=3000, row_tokens=3000),
    ppo=PPOConfig(
        policy_lr=1e-4, critic_lr=1e-3, policy_minibatch=4, critic_minibatch=4, temperature=0.5, row_tokens=6000
    ),
)


async def demonstrate(arena, tasks, path):
    """Right episodes of a script, as a file of trajectories."""
    lines = []
    for task in tasks:
        script = ScriptedPolicy([f"<command>echo {task.name}>{task.name}.txt</command>", "<action>done</action>"])
        got = await arena.play(task, script, RECIPE.rollout_agent(), item=f"{task.name}/demonstration")
        assert got.verdict.passed
        assert got.failure is FailureClass.OK
        lines.append(encode(got))
    path.write_bytes(b"\n".join(lines))


async def prepare(arena, place, model, tasks):
    """What a run there is given: tasks to train on and to measure, and demonstrations of them."""
    shown = place / "demonstrations.jsonl"
    await demonstrate(arena, tasks, shown)
    return Inputs(model=model, tasks=tasks, held_out=tasks, out=place / "run", demonstrations=(shown,))


async def test_from_demonstrations_to_a_policy_with_a_report_and_again(tmp_path):
    check(RECIPE, "recipe")
    tasks = (make_task(tmp_path / "tasks", "a"),)
    model = make_model(tmp_path / "model", hidden=64)
    told = []
    async with open_world(tmp_path / "state") as (engine, arena):
        inputs = await prepare(arena, tmp_path, model, tasks)
        tools = Tools(engine=engine, limits=limits(), run_id="test", say=told.append)
        await run_training(RECIPE, inputs, tools)
        rates = {
            name: rate(read_evaluation(inputs.out / "evaluations" / name).tasks, 1).value
            for name in ("start", "before_ppo", "end")
        }
        assert rates["start"] == 0
        assert rates["before_ppo"] >= 0.5
        lines = read_metrics(inputs.out / "metrics.jsonl")
        assert [line["step"] for line in lines] == [1, 2]
        assert {"policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "explained_variance"} <= lines[
            1
        ].keys()
        assert 0 < max(line["behaviour_gap"] for line in lines) < 1e-3
        page = write_report(inputs.out).read_text()
        assert "before PPO" in page
        assert "data:image/png" in page
        load_model(inputs.out / "policy")
        assert (inputs.out / "policy" / "tokenizer.json").exists()
        assert await engine.inventory() == []

        before = [path.stat().st_mtime_ns for path in (inputs.out / "evaluations").rglob("result.json")]
        await run_training(RECIPE, inputs, tools)  # a finished run has nothing left to do
        assert [path.stat().st_mtime_ns for path in (inputs.out / "evaluations").rglob("result.json")] == before
        assert len(read_metrics(inputs.out / "metrics.jsonl")) == 2
        with pytest.raises(UserError, match=r"another recipe: seed changed"):
            await run_training(msgspec.structs.replace(RECIPE, seed=2), inputs, tools)
        with pytest.raises(UserError, match=r"--held-out: is not what the run in .* began with"):
            await run_training(RECIPE, replace(inputs, held_out=()), tools)
        assert any("held-out tasks are trained on as well" in line for line in told)


@pytest.mark.parametrize("after", ["fine-tuning: step", "held-out pass rate, before_ppo", "PPO on"])
async def test_a_run_that_is_drained_says_so_and_goes_on_later(tmp_path, after):
    model, tasks = make_model(tmp_path / "model", hidden=64), (make_task(tmp_path / "tasks", "t0"),)
    recipe = msgspec.structs.replace(RECIPE, sft=msgspec.structs.replace(RECIPE.sft, epochs=5))
    drains = []

    def say(line):
        if line.startswith(after):
            drains[-1]()

    async with open_world(tmp_path / "state") as (engine, arena):
        inputs = await prepare(arena, tmp_path, model, tasks)
        tools = Tools(engine=engine, limits=limits(), run_id="test", say=say, on_drain=drains.append)
        assert not await run_training(recipe, inputs, tools)
        assert not (inputs.out / "policy").exists()
        assert read_metrics(inputs.out / "metrics.jsonl") == []
        write_report(inputs.out)
        assert await run_training(recipe, inputs, replace(tools, say=lambda _: None))
        assert (inputs.out / "policy").exists()
        assert [line["step"] for line in read_metrics(inputs.out / "metrics.jsonl")] == [1, 2]


def test_an_episode_without_a_turn_is_nothing_to_learn_from():
    played = Trajectory(
        trajectory_id="t/0/1",
        run_id="r",
        task="t",
        opening=(),
        turns=(),
        failure=FailureClass.CONTEXT_LENGTH,
        verdict=Verdict(reward=0.0, failure=FailureClass.OK),
    )
    assert learnable(played, group="t/0") == Missing(reason="context_length")
