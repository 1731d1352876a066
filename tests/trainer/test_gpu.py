"""On a machine with a GPU: the learner comes to the same there as on the CPU, and shows memory and time.

pytest -m gpu -s tests/trainer/test_gpu.py
"""

import copy
import time
from pathlib import Path

import msgspec
import pytest
import torch

from tests.trainer.test_sft import examples
from trainer.estimate import GIB, estimate
from trainer.model import Critic, ids_logprobs, load_model, recompute, save_model, small_llama
from trainer.parallel import own_device
from trainer.ppo import Learner
from trainer.recipe import Shape, load_recipe
from trainer.sample import Sample
from trainer.sft import fine_tune

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SMALL = load_recipe(Path(__file__).parents[2] / "recipes" / "small-cpu.toml")
LARGER = Shape(hidden=1024, layers=12, heads=32, kv_heads=32, head_dim=32, intermediate=4096, vocabulary=32_000)


def policy(device):
    return small_llama(512, context=256, seed=3).to(device)


def batch(vocabulary, *, count=48, length=128, context=0):
    """Episodes with recorded log-probabilities of no policy: large ratios, nothing trips."""
    random = torch.Generator().manual_seed(5)
    made = []
    for i in range(count):
        n = context or int(torch.randint(length // 2, length, (1,), generator=random))
        mask = [0] * (n // 2) + [1] * (n - n // 2)
        made.append(
            Sample(
                id=f"e{i}",
                group=f"g{i // 8}",
                ids=torch.randint(vocabulary, (n,), generator=random).tolist(),
                mask=mask,
                logprobs=[-6.0 * m for m in mask],
                versions=[m - 1 for m in mask],
                reward=float(i % 2),
            )
        )
    return made


def updated(device, **changes):
    config = msgspec.structs.replace(SMALL.ppo, max_gap=100.0, max_kl=1e9, max_ratio=1e30, epochs=1, **changes)
    model = policy(device)
    one = Learner(model, Critic(copy.deepcopy(model)), config)
    return one.update(batch(512)), {name: weight.detach().cpu() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_an_update_is_that_of_the_cpu(bf16):
    ours, weights = updated(torch.device("cpu"))
    theirs, their_weights = updated(own_device(), bf16=bf16)
    tolerance = {"rel": 0.05, "abs": 0.02} if bf16 else {"rel": 2e-3, "abs": 1e-4}
    for name in ("policy_loss", "value_loss", "entropy", "policy_grad_norm", "critic_grad_norm"):
        assert theirs[name] == pytest.approx(ours[name], **tolerance)
    start = dict(policy("cpu").named_parameters())
    moved, theirs_moved = (
        torch.cat([(w[name] - start[name].detach()).reshape(-1) for name in start]) for w in (weights, their_weights)
    )
    assert torch.cosine_similarity(moved, theirs_moved, dim=0) > (0.8 if bf16 else 0.99)


def test_fine_tuning_is_that_of_the_cpu():
    losses = []
    for device in ("cpu", own_device()):
        seen = []
        config = msgspec.structs.replace(SMALL.sft, batch=3, epochs=10)
        fine_tune(policy(device), examples(), config, on_step=lambda step, m, seen=seen: seen.append(m["loss"]))
        losses.append(seen)
    assert losses[1] == pytest.approx(losses[0], rel=0.02, abs=0.02)


def test_what_is_exported_from_the_device_is_what_is_trained_there(tmp_path):
    model = policy(own_device())
    save_model(model, tmp_path)
    assert ids_logprobs(load_model(tmp_path), [1, 2, 3, 4]) == pytest.approx(
        ids_logprobs(model, [1, 2, 3, 4]), abs=1e-3
    )


def test_memory_of_an_update_is_within_the_estimate():
    """A model of a quarter of a billion parameters, contexts of 4,096 tokens, gradient checkpointing, bfloat16."""
    context = 4096
    recipe = msgspec.structs.replace(
        SMALL,
        agent=SMALL.agent | {"context_tokens": context},
        train=msgspec.structs.replace(SMALL.train, gradient_checkpointing=True),
        ppo=msgspec.structs.replace(
            SMALL.ppo, bf16=True, micro_batch=1, row_tokens=context, max_gap=100.0, max_kl=1e9, max_ratio=1e30, epochs=1
        ),
    )
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    model = recompute(small_llama(LARGER.vocabulary, hidden=LARGER.hidden, layers=LARGER.layers, context=context))
    model.to(own_device())
    one = Learner(model, Critic(copy.deepcopy(model)), recipe.ppo)
    samples = batch(LARGER.vocabulary, count=8, context=context)
    one.update(samples)
    torch.cuda.synchronize()
    started = time.perf_counter()
    one.update(samples)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = (torch.cuda.max_memory_allocated() - held) / GIB
    counted = sum(part.gib for part in estimate(recipe, LARGER).learner)
    tokens = sum(len(sample.ids) for sample in samples)
    print(f"\n{torch.cuda.get_device_name()}: peak {peak:.2f} GiB, estimate {counted:.2f} GiB,", end=" ")
    print(f"{seconds:.2f} s an update of {tokens} tokens ({tokens / seconds:,.0f} tokens/s)")
    assert 0.5 * counted < peak < 1.1 * counted
