"""Recipes: the shipped ones say what the papers say; what is wrong is refused by name."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from runtime.errors import UserError
from tests.trainer.world import make_model
from trainer.estimate import estimate, parameters, serve_command, shape_of
from trainer.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
PPO = """
name = "x"
model = { name = "m", chat_format = "small" }
[ppo]
"""


def written(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path):
    assert load_recipe(path).name == path.stem


def test_the_small_recipe_with_sglang_differs_in_who_serves_and_in_patience_alone():
    own, served = (load_recipe(RECIPES / f"{name}.toml") for name in ("small-cpu", "small-cpu-sglang"))
    alike = {"name": own.name, "description": own.description, "serve": own.serve}
    patience = {"train": replace(served.train, patience_s=own.train.patience_s)}
    assert replace(served, **alike, **patience) == own


def test_the_control_differs_in_the_shuffled_rewards_alone():
    own, control = (load_recipe(RECIPES / f"{name}.toml") for name in ("small-cpu", "small-cpu-shuffled"))
    assert control.train.shuffle_rewards
    alike = {"name": own.name, "description": own.description}
    assert replace(control, **alike, train=replace(control.train, shuffle_rewards=False)) == own


def test_endless_terminals_as_published():
    llama, qwen2, qwen3 = (
        load_recipe(RECIPES / f"endless-terminals-{name}.toml") for name in ("llama-3.2-3b", "qwen2.5-7b", "qwen3-8b")
    )
    for recipe in (llama, qwen2, qwen3):
        ppo = recipe.ppo
        assert (ppo.advantage, ppo.gamma, ppo.lam) == ("gae", 1.0, 1.0)
        assert (ppo.clip_low, ppo.clip_high, ppo.value_clip, ppo.reduction) == (0.2, 0.28, 0.2, "sequence_mean")
        assert (ppo.policy_lr, ppo.critic_lr, ppo.weight_decay, ppo.entropy_coef) == (5e-7, 1e-6, 0.01, 0.0)
        assert (recipe.batch, ppo.policy_minibatch, ppo.critic_minibatch, ppo.epochs) == (256, 256, 128, 2)
        assert (recipe.train.epochs, recipe.train.evaluate_every, recipe.seed) == (10, 50, 42)
        assert recipe.rollout_agent().max_turns == 16
        assert recipe.evaluation_agent().max_turns == 64
        assert recipe.evaluation_agent().temperature == ppo.temperature
    differ = [
        (
            r.ppo.warmup_steps,
            r.ppo.grad_clip,
            r.ppo.micro_batch,
            r.ppo.temperature,
            r.rollout.concurrency,
            r.hardware.gpus,
        )
        for r in (llama, qwen2, qwen3)
    ]
    assert differ == [(10, 1.0, 4, 0.7, 64, 4), (20, 0.1, 1, 0.6, 32, 4), (20, 0.1, 2, 0.6, 32, 8)]
    assert [(r.train.checkpoint_every, r.train.checkpoint_keep) for r in (llama, qwen2, qwen3)] == [
        (10, 10),
        (10, 10),
        (50, 15),
    ]


def test_termigen_as_published():
    sft = load_recipe(RECIPES / "termigen-sft-32b.toml").sft
    assert (sft.learning_rate, sft.warmup_ratio, sft.weight_decay, sft.batch) == (5e-6, 0.1, 0.0, 64)
    assert (sft.epochs, sft.max_tokens) == (5, 20_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PPO + "clip_hihg = 0.3", r"unknown key 'ppo\.clip_hihg'\. Did you mean 'ppo\.clip_high'\?"),
        (PPO + "[agent]\nmax_turn = 3", r"Did you mean 'agent\.max_turns'\?"),
        (PPO + "[evaluate]\nagent = { max_trns = 3 }", r"Did you mean 'evaluate\.agent\.max_turns'\?"),
        (PPO + "[rollouts]\ngroups = 3", r"Did you mean 'rollout'\?"),
        (PPO + "policy_lr = 'fast'", r"\$\.ppo\.policy_lr"),
        (PPO + "[agent]\nmax_turns = 0", r"agent\.max_turns: 0 is refused"),
        (PPO + "[rollout]\nbound = 2", r"ppo\.behaviour_cap: is not set while rollout\.bound is 2"),
        (PPO + "negative_weight = 2.0", r"ppo\.negative_weight: is 2"),
        (PPO + "[agent]\ntemperature = 1.0", "sampled at 1 and learned from at 0.7"),
        (PPO + "[agent]\nkind = 'memory'", r"agent\.kind: 'memory' begins fresh contexts"),
        (PPO + "[agent]\nkind = 'minimum'", r"agent\.kind: 'minimum' is refused"),
        (PPO + "[rollout]\ngroup_size = 0", r"rollout\.group_size: 0 is refused"),
        (PPO + "micro_batch = 0", r"ppo\.micro_batch: 0 is refused"),
        (PPO + "[sft]\nepochs = 0", r"sft\.epochs: 0 is refused"),
        (PPO + "[serve]\nmax_running = 0", r"serve\.max_running: 0 is refused"),
        (PPO + "[evaluate]\nresamples = 0", r"evaluate\.resamples: 0 is refused"),
        (PPO.replace("[ppo]", ""), "neither an 'sft' nor a 'ppo' table"),
        ("name = ", "not TOML"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path, text, problem):
    with pytest.raises(UserError, match=problem):
        load_recipe(written(tmp_path, text))


def test_an_agent_with_memory_can_be_measured(tmp_path):
    recipe = load_recipe(written(tmp_path, PPO + "[evaluate]\nagent = { kind = 'memory' }"))
    assert (recipe.rollout_agent().kind, recipe.evaluation_agent().kind) == ("minimal", "memory")


def test_a_bound_with_the_decoupled_objective_is_fine(tmp_path):
    recipe = load_recipe(written(tmp_path, PPO + "behaviour_cap = 5.0\n[rollout]\nbound = 2"))
    assert recipe.rollout.bound == 2


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("endless-terminals-llama-3.2-3b", 3.21),
        ("endless-terminals-qwen2.5-7b", 7.62),
        ("endless-terminals-qwen3-8b", 8.19),
    ],
)
def test_parameters_are_counted_as_the_models_are_published(name, billions):
    assert parameters(load_recipe(RECIPES / f"{name}.toml").model.shape) / 1e9 == pytest.approx(billions, abs=0.01)


def test_the_parameters_of_a_model_at_hand_are_its_own(tmp_path):
    from trainer.model import load_model

    directory = make_model(tmp_path / "model")
    assert parameters(shape_of(directory)) == sum(p.numel() for p in load_model(directory).parameters())


def test_memory_is_told_by_part_and_adds_up_to_devices():
    recipe = load_recipe(RECIPES / "endless-terminals-qwen2.5-7b.toml")
    got = estimate(recipe, recipe.model.shape)
    parts = {part.name: part for part in got.learner}
    assert parts["policy: weights, float32"].gib == pytest.approx(7.616e9 * 4 / 2**30, rel=1e-3)
    divided = sum(part.gib for part in got.learner if part.divided)
    fixed = sum(part.gib for part in got.learner if not part.divided)
    assert divided / got.learner_gpus + fixed <= 80e9 / 2**30 * 0.9
    assert divided / (got.learner_gpus - 1) + fixed > 80e9 / 2**30 * 0.9
    assert got.tokens_per_update == 256 * 16_384
    assert "--max-running-requests 32 --max-prefill-tokens 16384 --mem-fraction-static 0.9" in serve_command(
        recipe, "M"
    )
