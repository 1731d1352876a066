"""Advantages against plain references, and their invariance to untrainable tokens."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.advantages import gae, grpo, place_rewards, rloo


def reference_gae(rewards, values, gamma, lam):
    """Textbook GAE on one dense sequence."""
    advantages = np.zeros(len(values))
    following = 0.0
    for t in reversed(range(len(values))):
        next_value = values[t + 1] if t + 1 < len(values) else 0.0
        following = rewards[t] + gamma * next_value - values[t] + gamma * lam * following
        advantages[t] = following
    return advantages


@st.composite
def ragged(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.normal(size=(rows, width)), rng.integers(0, 2, size=(rows, width)), rng.normal(size=rows)


@given(ragged(), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.95, 0.0]))
@settings(max_examples=80)
def test_gae_equals_the_textbook_on_the_trainable_subsequence(batch, gamma, lam):
    values, mask, scores = batch
    rewards = place_rewards(torch.tensor(scores), torch.tensor(mask))
    advantages, returns = gae(
        rewards, torch.tensor(values, dtype=torch.float32), torch.tensor(mask), gamma=gamma, lam=lam
    )
    for row in range(len(values)):
        keep = mask[row].astype(bool)
        dense_rewards = np.zeros(keep.sum())
        if keep.any():
            dense_rewards[-1] = scores[row]
        expected = reference_gae(dense_rewards, values[row][keep], gamma, lam)
        np.testing.assert_allclose(advantages[row][keep].numpy(), expected, atol=1e-5)
        np.testing.assert_allclose(returns[row][keep].numpy(), expected + values[row][keep], atol=1e-5)
        assert not advantages[row][~keep].any()
        assert not returns[row][~keep].any()


def test_reward_sits_on_the_last_trainable_token():
    placed = place_rewards(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]))
    assert placed.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_group_baselines_by_hand():
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([7, 7, 7, 8, 9])
    mask = torch.tensor([[1, 0], [1, 1], [0, 0], [1, 1], [1, 1]])
    left_out = rloo(rewards, groups, mask)
    assert left_out.tolist() == [[1.0, 0.0], [-0.5, -0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    relative = grpo(rewards, groups, mask, scale=False)
    torch.testing.assert_close(relative[:2], torch.tensor([[2 / 3, 0.0], [-1 / 3, -1 / 3]]))
    scaled = grpo(rewards, groups, torch.ones(5, 1))
    torch.testing.assert_close(scaled[:3].square().mean(), torch.tensor(1.0), atol=1e-4, rtol=0)
    assert scaled[3:].abs().max() == 0


def test_infrastructure_failures_left_out_change_no_baseline():
    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    assert torch.equal(rloo(rewards, groups, torch.ones(2, 1)), torch.tensor([[1.0], [-1.0]]))
