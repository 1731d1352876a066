"""Losses against references written plainly."""

import math

import numpy as np
import torch

from trainer.losses import policy_loss, reduce, token_logprobs, value_loss


def batch(seed, rows=3, width=7):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda scale=1.0: torch.randn(rows, width, generator=generator) * scale  # noqa: E731
    mask = (torch.rand(rows, width, generator=generator) < 0.6).float()
    return draw(), draw(0.3), draw(0.3), draw(0.3), mask


def plain_policy_loss(advantages, current, proximal, behaviour, mask, cap):
    sequences = []
    for row in range(len(mask)):
        terms = []
        for t in range(mask.shape[1]):
            if mask[row, t]:
                ratio = math.exp(current[row, t] - proximal[row, t])
                clipped = min(max(ratio, 0.8), 1.28)
                weight = 1.0 if cap is None else min(math.exp(proximal[row, t] - behaviour[row, t]), cap)
                terms.append(weight * min(ratio * advantages[row, t], clipped * advantages[row, t]))
        if terms:
            sequences.append(np.mean(terms))
    return -np.mean(sequences)


def test_policy_loss_equals_the_plain_one_with_and_without_decoupling():
    for seed in range(20):
        advantages, current, proximal, behaviour, mask = batch(seed)
        for cap in (None, 1.1, 2.0):
            got = policy_loss(current, proximal, behaviour, advantages, mask, behaviour_cap=cap).loss
            want = plain_policy_loss(*(x.numpy() for x in (advantages, current, proximal, behaviour, mask)), cap)
            assert math.isclose(float(got), want, abs_tol=1e-5)


def test_untrainable_tokens_have_exactly_zero_gradient():
    advantages, current, proximal, behaviour, mask = batch(1)
    current.requires_grad_()
    policy_loss(current, proximal, behaviour, advantages, mask, behaviour_cap=2.0).loss.backward()
    assert current.grad is not None
    assert torch.equal(current.grad[mask == 0], torch.zeros_like(current.grad[mask == 0]))
    assert current.grad[mask == 1].abs().sum() > 0


def test_not_a_number_outside_the_mask_does_no_harm():
    advantages, current, proximal, behaviour, mask = batch(2)
    current[mask == 0] = float("nan")
    current.requires_grad_()
    result = policy_loss(current, proximal, behaviour, advantages, mask)
    result.loss.backward()
    assert torch.isfinite(result.loss)
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()


def test_diagnostics_at_the_first_step_are_neutral():
    advantages, current, _, _, mask = batch(3)
    result = policy_loss(current, current, current, advantages, mask, behaviour_cap=2.0)
    assert float(result.approx_kl) == 0
    assert float(result.clipfrac) == 0
    assert float(result.ratio_max) == 1
    assert float(result.behaviour_gap) == 0


def test_value_loss_clips_and_explains():
    values, old = torch.tensor([[1.0, 5.0]]), torch.tensor([[1.0, 1.0]])
    returns, mask = torch.tensor([[2.0, 5.0]]), torch.ones(1, 2)
    result = value_loss(values, old, returns, mask)
    assert math.isclose(float(result.loss), 0.5 * (1.0 + (1.2 - 5.0) ** 2) / 2, rel_tol=1e-6)
    assert float(result.clipfrac) == 0.5
    perfect = value_loss(returns, returns, returns, mask)
    assert float(perfect.loss) == 0
    assert float(perfect.explained_variance) == 1
    alike = torch.tensor([[1.0, 1.0 + 1e-6]])
    assert float(value_loss(values, old, alike, mask).explained_variance) == 0


def test_reductions_differ_as_documented():
    per_token, mask = torch.tensor([[1.0, 1.0, 1.0], [4.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    assert float(reduce(per_token, mask, "sequence_mean")) == 2.5
    assert float(reduce(per_token, mask, "token_mean")) == 7 / 4
    assert float(reduce(per_token, torch.zeros_like(mask))) == 0


def test_chunked_log_probabilities_equal_the_whole():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(11, 17, generator=generator, requires_grad=True)
    targets = torch.randint(17, (11,), generator=generator)
    whole = torch.log_softmax(logits / 0.7, -1)
    got, entropy = token_logprobs(logits, targets, temperature=0.7, chunk=4, entropy=True)
    torch.testing.assert_close(got, whole.gather(-1, targets[:, None]).squeeze(-1))
    assert entropy is not None
    torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(-1).detach())
    gradient = torch.autograd.grad(got.sum(), logits)[0]
    expected = torch.autograd.grad(whole.gather(-1, targets[:, None]).sum(), logits)[0]
    torch.testing.assert_close(gradient, expected)
