"""The estimate against what torch really holds."""

import re
from pathlib import Path

import msgspec
import pytest
import torch

from tests.trainer.test_ppo import episodes, learner
from trainer.batch import pack
from trainer.estimate import GIB, estimate, inside_layer, placement, serve_command, train_command
from trainer.model import backbone, packed_inputs, recompute, small_llama
from trainer.recipe import Shape, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
ROWS = 256


def qwen(**changes):
    return msgspec.structs.replace(load_recipe(RECIPES / "endless-terminals-qwen2.5-7b.toml"), **changes)


def kept(layers, *, again=False, bf16=False):
    """Bytes that a forward pass over one packed row keeps for the backward pass, weights and their copies apart."""
    model = small_llama(64, hidden=128, layers=layers, context=ROWS)
    if again:
        recompute(model)
    shapes = {weight.shape for weight in model.parameters()} | {weight.t().shape for weight in model.parameters()}
    row = pack(torch.zeros(2, ROWS // 2, dtype=torch.int64), torch.tensor([ROWS // 2] * 2), row_tokens=ROWS)[0]
    seen = {}

    def keep(tensor):
        if tensor.shape not in shapes:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        held = backbone(model)(**packed_inputs(row)).last_hidden_state
    assert held.requires_grad
    return sum(seen.values())


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_a_layer_keeps_what_is_counted(bf16):
    shape = Shape(hidden=128, layers=1, heads=4, kv_heads=4, head_dim=32, intermediate=512, vocabulary=64)
    counted = inside_layer(shape, ROWS, 2 if bf16 else 4)
    assert (kept(6, bf16=bf16) - kept(3, bf16=bf16)) / 3 == pytest.approx(counted, rel=0.02)
    again = (kept(6, bf16=bf16, again=True) - kept(3, bf16=bf16, again=True)) / 3
    assert again == pytest.approx(4 * ROWS * 128, rel=0.02), "only the layer's input"


def test_weights_and_moments_are_what_an_update_leaves_behind():
    one = learner()
    one.update(episodes(one.policy))
    shape = Shape(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=128, vocabulary=11)
    parts = {part.name: part.gib * GIB for part in estimate(qwen(), shape).learner}
    held = sum(weight.numel() * weight.element_size() for weight in one.policy.parameters())
    assert held == pytest.approx(parts["policy: weights, float32"])
    moments = [value for state in one.policy_optimiser.state.values() for value in state.values() if value.ndim]
    assert sum(value.numel() * value.element_size() for value in moments) == pytest.approx(
        parts["policy: AdamW moments, float32"]
    )


def test_larger_devices_need_fewer_and_checkpointing_saves():
    recipe = qwen()
    got = estimate(recipe, recipe.model.shape)
    assert [card.gpu_memory_gb for card in got.cards] == [80.0, 141.0]
    small, large = got.cards
    assert small.learner_gpus > large.learner_gpus > 1
    assert small.contexts < large.contexts
    without, again = got.activations_gib
    assert without > 10 * again
    assert f"--nproc-per-node {got.learner_gpus}" in train_command("R", got)
    said = "\n".join(placement(recipe, got))
    assert f"learner: {got.learner_gpus} processes" in said
    assert "4 on 1 device(s) each" in said


def test_an_engine_has_more_room_than_an_episode_asks_for():
    recipe = qwen()
    context = int(re.search(r"--context-length (\d+)", serve_command(recipe, "M"))[1])
    assert context > recipe.rollout_agent().context_tokens


def test_adapters_need_no_gradients_of_the_whole():
    recipe = qwen()
    from trainer.lora import LoRAConfig

    whole, low = (
        {part.name: part.gib for part in estimate(r, r.model.shape).learner} for r in (recipe, qwen(lora=LoRAConfig()))
    )
    assert low["policy: weights, float32"] == whole["policy: weights, float32"]
    assert low["policy: AdamW moments, float32"] < 0.02 * whole["policy: AdamW moments, float32"]


def test_what_never_fits_is_said():
    recipe = qwen()
    recipe = msgspec.structs.replace(
        recipe,
        hardware=msgspec.structs.replace(recipe.hardware, gpu_memory_gb=8.0),
    )
    got = estimate(recipe, recipe.model.shape)
    assert got.learner_gpus is None
    assert any("no number of these devices" in line for line in placement(recipe, got))
