"""Adapters: they alone are trained, and what is handed over and exported has them merged in."""

import copy

import msgspec
import pytest
import torch

from runtime.errors import UserError
from tests.trainer.test_ppo import CONFIG, VOCABULARY, episodes, rewarded, weights
from tests.trainer.test_sft import examples
from trainer.estimate import adapter_parameters
from trainer.handover import WeightStore, read_weights
from trainer.lora import AdaptedLinear, LoRAConfig, adapted, bring, merged_weights
from trainer.model import Critic, ids_logprobs, load_model, save_model, small_llama
from trainer.ppo import Learner
from trainer.recipe import Shape, load_recipe
from trainer.sft import SFTConfig, fine_tune

LORA = LoRAConfig(rank=4, alpha=8.0)
IDS = [1, 2, 3, 4, 5]


def shaken():
    """A plain model, and one with adapters that do something."""
    plain = small_llama(VOCABULARY, hidden=32, layers=2)
    trained = adapted(plain, LORA)
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if name.endswith("lora_b"):
                weight.normal_()
    return plain, trained


def test_an_adapted_model_starts_as_the_one_that_it_was():
    plain = small_llama(VOCABULARY, hidden=32, layers=2)
    assert ids_logprobs(adapted(plain, LORA), IDS) == ids_logprobs(plain, IDS)


def test_merged_weights_say_what_the_adapted_model_says(tmp_path):
    plain, trained = shaken()
    before = ids_logprobs(plain, IDS)
    bring(trained, plain, lambda tensor: tensor)
    save_model(plain, tmp_path / "exported")
    for merged in (plain, load_model(tmp_path / "exported")):
        assert ids_logprobs(merged, IDS) == pytest.approx(ids_logprobs(trained, IDS), abs=1e-5)
        assert ids_logprobs(merged, IDS) != pytest.approx(before, abs=1e-2)
    assert [name for name, _ in merged_weights(trained, lambda tensor: tensor)] == [
        name for name, _ in plain.named_parameters()
    ]


def test_an_update_trains_the_adapters_only_and_hands_over_merged_weights(tmp_path):
    policy = small_llama(VOCABULARY, hidden=32, layers=1)
    start = copy.deepcopy(policy)
    one = Learner(policy, Critic(copy.deepcopy(policy)), CONFIG, lora=LORA)
    frozen = {n: w.clone() for n, w in one.trained.named_parameters() if not n.endswith((".lora_a", ".lora_b"))}
    one.update(rewarded(episodes(policy)))
    for name, weight in one.trained.named_parameters():
        assert (name in frozen) != weight.requires_grad
        if name in frozen:
            assert torch.equal(weight, frozen[name])
    held = sum(value.numel() for state in one.policy_optimiser.state.values() for value in state.values())
    trainable = sum(weight.numel() for weight in one.trained.parameters() if weight.requires_grad)
    assert held == 2 * trainable + len(one.policy_optimiser.state)
    assert not torch.equal(weights(policy), weights(start))
    assert {n for n, w in policy.named_parameters() if not torch.equal(w, dict(start.named_parameters())[n])} == {
        f"{name}.weight" for name, part in one.trained.named_modules() if isinstance(part, AdaptedLinear)
    }
    published = WeightStore(tmp_path).publish(one.policy, 1, probe=IDS)
    assert read_weights(published).logprobs == pytest.approx(ids_logprobs(one.trained, IDS), abs=1e-5)


def test_fine_tuning_with_adapters_fits_and_leaves_a_plain_model():
    model = small_llama(23, hidden=32, layers=1)
    names, seen = [name for name, _ in model.named_parameters()], []
    config = SFTConfig(learning_rate=1e-2, batch=3, epochs=30)
    fine_tune(model, examples(), config, lora=LORA, on_step=lambda step, m: seen.append(m["loss"]))
    assert seen[-1] < 0.8 * seen[0]
    assert [name for name, _ in model.named_parameters()] == names


def test_the_estimate_counts_adapters_as_they_are():
    model = adapted(small_llama(VOCABULARY, hidden=64, layers=2), LORA)
    shape = Shape(hidden=64, layers=2, heads=2, kv_heads=2, head_dim=32, intermediate=256, vocabulary=VOCABULARY)
    assert adapter_parameters(LORA, shape) == sum(w.numel() for w in model.parameters() if w.requires_grad)


def test_a_target_that_the_model_does_not_have_is_refused():
    with pytest.raises(UserError, match=r"lora\.targets.*Choose from .*q_proj"):
        adapted(small_llama(VOCABULARY, hidden=32, layers=1), LoRAConfig(targets=("qkv",)))


def test_a_recipe_chooses_adapters(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('name = "x"\nmodel = { name = "m", chat_format = "small" }\n[sft]\n[lora]\nrank = 8\n')
    assert msgspec.structs.asdict(load_recipe(path).lora)["rank"] == 8
    path.write_text(path.read_text().replace("rank = 8", "rank = 0"))
    with pytest.raises(UserError, match=r"lora\.rank: 0 is refused"):
        load_recipe(path)
