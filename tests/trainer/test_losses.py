"""Losses against references written plainly."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.losses import head_logprobs, policy_loss, reduce, value_loss


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


def head_and_hidden(vocabulary=4099, tokens=24):
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(8, vocabulary, bias=False), torch.randn(tokens, 8, requires_grad=True)
    return head, hidden, torch.randint(vocabulary, (tokens,))


@pytest.mark.parametrize("tokens", [0, 1, 5, 24])
def test_chunked_log_probabilities_equal_the_whole(tokens):
    head, hidden, targets = head_and_hidden(vocabulary=17, tokens=tokens)
    whole = torch.log_softmax(head(hidden) / 0.7, -1)
    chosen, spread = whole.gather(-1, targets[:, None]).squeeze(-1), -(whole.exp() * whole).sum(-1)
    for entropy in ("none", "value", "gradient"):
        got, entropies = head_logprobs(head, hidden, targets, temperature=0.7, entropy=entropy, chunk=5)
        torch.testing.assert_close(got, chosen)
        torch.testing.assert_close(entropies, torch.zeros_like(spread) if entropy == "none" else spread)
        counted = chosen.sum() + (spread.pow(2).sum() if entropy == "gradient" else 0.0)
        expected = torch.autograd.grad(counted, (hidden, head.weight), retain_graph=True)
        gradients = torch.autograd.grad(got.sum() + entropies.pow(2).sum(), (hidden, head.weight))
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one, other)


class Widths(TorchDispatchMode):
    """Notes how many rows as wide as the vocabulary any one tensor has."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.rows = vocabulary, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == self.vocabulary:
            self.rows.add(out.shape[0])
        return out


def test_nothing_as_wide_as_the_vocabulary_is_kept_or_made_beyond_a_chunk():
    head, hidden, targets = head_and_hidden()
    kept = []

    def keep(tensor):
        kept.append(tensor.shape)
        return tensor

    with Widths(head.out_features) as widths, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs, entropies = head_logprobs(head, hidden, targets, entropy="gradient", chunk=6)
        (logprobs.sum() + entropies.sum()).backward()
    assert kept
    assert all(head.out_features not in shape for shape in kept if shape != head.weight.shape)
    assert max(widths.rows - {head.in_features}) == 6, "a weight's transposed view is as wide, too"
