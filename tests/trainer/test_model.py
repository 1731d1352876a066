"""Packed scoring against one sequence at a time through the plain model."""

import pytest
import torch

from trainer.batch import collate, pack
from trainer.model import Critic, Scorer, critic_values, policy_logprobs, small_llama
from trainer.sample import Sample


def make_samples(seed=0, count=5, vocabulary=31):
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for i in range(count):
        length = int(torch.randint(2, 12, (1,), generator=generator))
        ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
        mask = [0, *torch.randint(2, (length - 1,), generator=generator).tolist()]
        samples.append(
            Sample(
                id=f"s{i}", group=f"g{i // 2}", ids=ids, mask=mask, reward=float(i % 2),
                logprobs=[-0.5 * m for m in mask], versions=[0 if m else -1 for m in mask],
            )
        )  # fmt: skip
    return samples


@pytest.mark.parametrize("row_tokens", [1, 16, 1000])
def test_packed_log_probabilities_equal_the_plain_model(row_tokens):
    samples, model = make_samples(), small_llama(31, hidden=32, layers=2)
    got, entropy = policy_logprobs(
        Scorer(model), collate(samples), temperature=0.7, row_tokens=row_tokens, entropy="value"
    )
    for row, sample in enumerate(samples):
        logits = model(input_ids=torch.tensor([sample.ids])).logits[0] / 0.7
        for t, trainable in enumerate(sample.mask):
            distribution = torch.log_softmax(logits[t - 1], -1)
            want = distribution[sample.ids[t]] if trainable else torch.tensor(0.0)
            torch.testing.assert_close(got[row, t], want, atol=1e-5, rtol=0)
            if trainable:
                torch.testing.assert_close(
                    entropy[row, t], -(distribution.exp() * distribution).sum(), atol=1e-5, rtol=0
                )


def test_values_do_not_see_the_token_they_judge():
    critic = Critic(small_llama(31, hidden=32, layers=2))
    torch.nn.init.normal_(critic.head.weight)
    sample = Sample(
        id="a", group="a", ids=[1, 2, 3, 4], mask=[0, 1, 0, 1], logprobs=[0.0] * 4, versions=[-1, 0, -1, 0], reward=1.0
    )
    other = Sample(
        id="b", group="b", ids=[1, 2, 3, 9], mask=[0, 1, 0, 1], logprobs=[0.0] * 4, versions=[-1, 0, -1, 0], reward=1.0
    )
    values = critic_values(critic, collate([sample, other]), row_tokens=64)
    assert torch.equal(values[0], values[1])
    assert values[0, 1] != values[0, 3]


def test_the_critics_head_is_where_its_model_is():
    critic = Critic(small_llama(31, hidden=32, layers=1).to("meta"))
    assert {weight.device.type for weight in critic.parameters()} == {"meta"}


def test_packing_keeps_every_token_once_and_fills_rows():
    batch = collate(make_samples(count=9))
    rows = pack(batch.ids, batch.lengths, row_tokens=16)
    seen = torch.cat([row.source[0] for row in rows])
    assert len(seen) == len(set(seen.tolist())) == int(batch.lengths.sum())
    assert all(row.ids.shape[1] <= 16 for row in rows)
    assert torch.equal(torch.cat([row.ids[0] for row in rows]), batch.ids.reshape(-1)[seen])


def test_ragged_records_are_refused():
    with pytest.raises(ValueError, match="different lengths"):
        Sample(id="x", group="x", ids=[1, 2], mask=[0], logprobs=[0.0, 0.0], versions=[0, 0], reward=0.0)
