"""Fine-tuning: weights, packing, schedule, and that it fits."""

import math
from itertools import pairwise

import msgspec
import pytest
import torch

from tests.trainer.test_tokens import play, tokenizer  # noqa: F401
from trainer.model import Scorer, small_llama
from trainer.ppo import TrainingDiverged
from trainer.sample import Example
from trainer.sft import SFTConfig, example_of, fine_tune, row_loss, schedule, targets_of
from trainer.tokens import FORMATS, Encoder


def examples(count=6, vocabulary=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        length = int(torch.randint(2, 10, (1,), generator=generator))
        ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
        made.append(Example(id=f"x{i}", ids=ids, weights=[float(t % 3 != 0) * 0.5 for t in range(length)]))
    return made


def plain_loss(model, members):
    total = weight = 0.0
    for example in members:
        logprobs = torch.log_softmax(model(input_ids=torch.tensor([example.ids])).logits[0], -1)
        for t in range(1, len(example.ids)):
            total -= float(logprobs[t - 1, example.ids[t]].detach()) * example.weights[t]
            weight += example.weights[t]
    return total, weight


def test_the_packed_loss_equals_the_plain_one():
    members, model = examples(), small_llama(23, hidden=32, layers=2)
    targets = targets_of(members, 100, torch.device("cpu"))
    for row_tokens in (1, 12, 500):
        total = sum(float(row_loss(Scorer(model), targets, row).detach()) for row in targets.rows(row_tokens))
        want_total, want_weight = plain_loss(model, members)
        assert math.isclose(total, want_total, rel_tol=1e-4)
        assert math.isclose(float(targets.weights.sum()), want_weight, rel_tol=1e-6)


def test_fine_tuning_fits_and_repeats():
    members = examples()
    losses = []
    for _ in range(2):
        model = small_llama(23, hidden=32, layers=1)
        seen = []
        config = SFTConfig(learning_rate=1e-2, batch=3, epochs=30)
        fine_tune(model, members, config, on_step=lambda step, m, seen=seen: seen.append(m["loss"]))
        losses.append(seen)
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.5 * losses[0][0]


def test_steps_that_are_not_finite_are_skipped_and_end_the_run_when_repeated():
    model, members = small_llama(23, hidden=32, layers=1), examples()
    before = [weight.clone() for weight in model.parameters()]
    poisoned = [msgspec.structs.replace(e, weights=[float("nan")] * len(e.weights)) for e in members]
    seen = []
    with pytest.raises(TrainingDiverged, match=r"3 non-finite steps in a row, the last on x\d"):
        fine_tune(
            model, poisoned, SFTConfig(batch=1, max_skips=3), on_step=lambda s, m: seen.append(m["skipped_steps"])
        )
    assert seen == [1.0, 1.0]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_it_can_be_stopped_early():
    steps = []
    fine_tune(
        small_llama(23, hidden=32, layers=1),
        examples(),
        SFTConfig(batch=1),
        on_step=lambda step, m: steps.append(step) or step == 2,
    )
    assert steps == [0, 1, 2]


def test_it_has_the_threads_that_are_asked_for_and_gives_them_back():
    usual, seen = torch.get_num_threads(), []
    fine_tune(
        small_llama(23, hidden=32, layers=1),
        examples(),
        SFTConfig(threads=usual + 1),
        on_step=lambda step, m: seen.append(torch.get_num_threads()),
    )
    assert set(seen) == {usual + 1}
    assert torch.get_num_threads() == usual


def test_what_was_stopped_goes_on_as_if_it_never_had(tmp_path):
    members, config = examples(), SFTConfig(learning_rate=1e-2, batch=2, epochs=3, checkpoint_every=2)
    straight, stopped, seen = small_llama(23, hidden=32, layers=1), None, []
    fine_tune(straight, members, config)
    for last in (4, 6, None):
        stopped = small_llama(23, hidden=32, layers=1)
        fine_tune(
            stopped,
            members,
            config,
            checkpoints=tmp_path,
            on_step=lambda step, m, last=last: seen.append(step) or step == last,
        )
    assert seen == list(range(9))
    for one, other in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_schedule_rises_then_falls_to_zero():
    values = [schedule(step, 100, 0.1) for step in range(101)]
    assert values[0] == 0.1
    assert values[9] == values[10] == 1.0
    assert values[100] < 1e-9
    assert all(a >= b for a, b in pairwise(values[10:]))


async def test_masked_turns_are_seen_and_not_imitated(tokenizer):  # noqa: F811
    encoder = Encoder(tokenizer, FORMATS["qwen2.5"])
    trajectory = await play(encoder, [encoder.text("A"), encoder.text("B")])
    turns = tuple(msgspec.structs.replace(t, observation=o) for t, o in zip(trajectory.turns, ("O", None), strict=True))
    turns = (msgspec.structs.replace(turns[0], loss_weight=0.0), turns[1])
    example = example_of(msgspec.structs.replace(trajectory, turns=turns), encoder)
    targets = [i for i, w in zip(example.ids, example.weights, strict=True) if w]
    assert encoder.decode(targets) == "B"
    assert targets[-1] == encoder.stop_ids[0]
    assert "A" in encoder.decode(example.ids)
