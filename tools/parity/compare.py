"""Compares the learner's functions with those of verl 0.9.1, AReaL 1.0.4 and peft 0.21.2.

Random ragged batches in float64 (prompts, observations and padding between trainable tokens, sequences without any),
losses with their gradients. Prints the largest absolute difference over all seeds for each function, and fails when one
is above 1e-6. Where a definition differs, theirs is brought to ours first; how, stands in the last column.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.advantages import gae, grpo, place_rewards, rloo
from trainer.lora import LoRAConfig, adapted, merged_weights
from trainer.losses import policy_loss, reduce, token_logprobs, value_loss
from trainer.model import small_llama

LIMIT = 1e-6
LOW, HIGH, CAP, VALUE_CLIP = 0.2, 0.28, 1.5, 0.2
NO_DUAL_CLIP = 1e30
"""verl's third clip, far away: ours has none."""


@dataclass(frozen=True)
class Batch:
    """[B, T] each, but for `rewards` and `groups` [B]."""

    mask: Tensor
    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantages: Tensor
    values: Tensor
    old_values: Tensor
    returns: Tensor
    rewards: Tensor
    groups: Tensor


def draw(seed: int) -> Batch:
    """A ragged batch; in every third one a sequence has no trainable token."""
    random = torch.Generator().manual_seed(seed)
    rows, width = 8, int(torch.randint(3, 40, (1,), generator=random))

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(rows, width, generator=random, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (rows, 1), generator=random)
    mask = (torch.rand(rows, width, generator=random) < 0.6) & (torch.arange(width) < lengths)
    if seed % 3:
        mask[:, 0] = True
    else:
        mask[0] = False
    behaviour = normal(0.5) - 1.0
    proximal = behaviour + normal(0.3)
    current = proximal + normal(0.3)
    values = normal(1.0)
    return Batch(
        mask=mask.double(),
        current=current,
        proximal=proximal,
        behaviour=behaviour,
        advantages=normal(1.0),
        values=values,
        old_values=values + normal(0.3),
        returns=normal(1.0),
        rewards=torch.randint(2, (rows,), generator=random).double(),
        groups=torch.arange(rows) // 4,
    )


def gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def with_gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """A loss and its gradient, flat."""
    at = at.clone().requires_grad_()
    value = loss(at)
    (gradient,) = torch.autograd.grad(value, at)
    return torch.cat([value.detach().reshape(1), gradient.reshape(-1)]).double()


Found = tuple[str, str, float, str]
"""Peer, function, difference, how theirs was brought to ours."""


def verl(b: Batch) -> Iterator[Found]:
    import verl.utils.torch_functional as functional
    from verl.trainer.ppo import core_algos as algorithms
    from verl.workers.config import ActorConfig

    whitened = "ours is whitened like theirs"
    for gamma, lam in ((1.0, 1.0), (0.97, 0.9)):
        rewards = place_rewards(b.rewards, b.mask)
        ours, our_returns = gae(rewards, b.values, b.mask, gamma=gamma, lam=lam)
        theirs, returns = algorithms.compute_gae_advantage_return(rewards, b.values, b.mask, gamma, lam)
        name = f"GAE, gamma {gamma:g}, lambda {lam:g}"
        yield "verl", name, gap(functional.masked_whiten(ours, b.mask) * b.mask, theirs * b.mask), whitened
        yield "verl", f"returns of {name}", gap(our_returns, returns * b.mask), ""
    rewards, index = place_rewards(b.rewards, b.mask), b.groups.numpy()
    reached = b.rewards * b.mask.any(dim=1)
    theirs = algorithms.compute_grpo_outcome_advantage(rewards.clone(), b.mask, index, norm_adv_by_std_in_grpo=False)[0]
    yield "verl", "GRPO without scaling", gap(grpo(reached, b.groups, b.mask, scale=False), theirs), ""
    theirs = algorithms.compute_grpo_outcome_advantage(rewards.clone(), b.mask, index, epsilon=1e-6)[0]
    ours = grpo(reached, b.groups, b.mask, eps=1e-6 * 0.75**0.5) * 0.75**0.5
    yield "verl", "GRPO", gap(ours, theirs), "deviation over n - 1 there, over n here"
    theirs = algorithms.compute_rloo_outcome_advantage(rewards.clone(), b.mask, index)[0]
    yield "verl", "RLOO", gap(rloo(reached, b.groups, b.mask), theirs), ""

    for ours_mode, mode in (("sequence_mean", "seq-mean-token-mean"), ("token_mean", "token-mean")):
        actor = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=NO_DUAL_CLIP,
        )  # fmt: skip
        weight = (b.proximal - b.behaviour).exp().clamp(max=CAP)
        for cap, weights in ((None, None), (CAP, weight)):
            ours = with_gradient(
                lambda x, m=ours_mode, c=cap: policy_loss(
                    x, b.proximal, b.behaviour, b.advantages, b.mask,
                    clip_low=LOW, clip_high=HIGH, behaviour_cap=c, reduction=m,
                ).loss,
                b.current,
            )  # fmt: skip
            theirs = with_gradient(
                lambda x, m=mode, a=actor, w=weights: algorithms.compute_policy_loss_vanilla(
                    b.proximal, x, b.advantages, b.mask, loss_agg_mode=m, config=a, rollout_is_weights=w
                )[0],
                b.current,
            )
            title = f"{'decoupled ' if cap else ''}policy loss, {ours_mode}"
            yield "verl", title, gap(ours, theirs), "their dual clip is put out of reach"
        ours = with_gradient(
            lambda x, m=ours_mode: value_loss(x, b.old_values, b.returns, b.mask, clip=VALUE_CLIP, reduction=m).loss,
            b.values,
        )
        theirs = with_gradient(
            lambda x, m=mode: algorithms.compute_value_loss(
                x, b.returns, b.old_values, b.mask, VALUE_CLIP, loss_agg_mode=m
            )[0],
            b.values,
        )
        yield "verl", f"value loss, {ours_mode}", gap(ours, theirs), ""
    k3 = algorithms.kl_penalty(b.proximal, b.current, "k3")
    ours_kl = policy_loss(b.current, b.proximal, b.behaviour, b.advantages, b.mask).approx_kl
    yield "verl", "KL (k3)", gap(ours_kl, reduce(k3, b.mask, "token_mean")), ""
    logits = torch.randn(5, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(len(b.mask[0])))
    targets = torch.arange(5)
    logprobs, entropies = token_logprobs(logits, targets, entropy="value")
    yield "verl", "entropy", gap(entropies, functional.entropy_from_logits(logits)), ""
    yield "verl", "log-probabilities", gap(logprobs, functional.logprobs_from_logits_naive(logits, targets)), ""


def areal(b: Batch) -> Iterator[Found]:
    from areal.api.cli_args import RejectionSamplingConfig
    from areal.utils.functional import ppo_actor_loss_fn, ppo_critic_loss_fn

    keep = b.mask.bool()
    truncated = RejectionSamplingConfig(level="token", action="clamp", metric="ratio", upper=CAP)
    for title, rejection, cap in (("policy loss", None, None), ("decoupled policy loss", truncated, CAP)):
        ours = with_gradient(
            lambda x, c=cap: policy_loss(
                x, b.proximal, b.behaviour, b.advantages, b.mask,
                clip_low=LOW, clip_high=HIGH, behaviour_cap=c, reduction="token_mean",
            ).loss,
            b.current,
        )  # fmt: skip
        theirs = with_gradient(
            lambda x, r=rejection: ppo_actor_loss_fn(
                x, b.proximal, b.behaviour, b.advantages,
                eps_clip=LOW, eps_clip_higher=HIGH, loss_mask=keep, rejection_sampling=r,
            )[0],
            b.current,
        )  # fmt: skip
        yield "AReaL", f"{title}, token_mean", gap(ours, theirs), ""
    values, old, returns = (x.float() for x in (b.values, b.old_values, b.returns))
    ours = with_gradient(
        lambda x: value_loss(x, old, returns, b.mask.float(), clip=VALUE_CLIP, reduction="token_mean").loss, values
    )
    theirs = with_gradient(lambda x: ppo_critic_loss_fn(x, old, returns, VALUE_CLIP, loss_mask=keep)[0], values)
    yield "AReaL", "value loss, token_mean", gap(ours, theirs), "float32: theirs takes nothing else"


def peft(seed: int) -> Iterator[Found]:
    from peft import LoraConfig, get_peft_model

    plain = small_llama(31, hidden=32, layers=2, seed=seed).double()
    config = LoRAConfig(rank=4, alpha=8.0)
    ours = adapted(plain, config, seed=seed)
    wrapped = get_peft_model(
        small_llama(31, hidden=32, layers=2, seed=seed).double(),
        LoraConfig(r=4, lora_alpha=8.0, target_modules=list(config.targets), lora_dropout=0.0),
    )
    random = torch.Generator().manual_seed(seed)
    theirs = dict(wrapped.named_parameters())
    with torch.no_grad():
        for name, weight in ours.named_parameters():
            if name.endswith((".lora_a", ".lora_b")):
                weight.normal_(generator=random)
                layer, _, letter = name.rpartition(".lora_")
                theirs[f"base_model.model.{layer}.lora_{letter.upper()}.default.weight"].copy_(weight)
    ids = torch.arange(20)[None]
    yield "peft", "logits with adapters", gap(ours(input_ids=ids).logits, wrapped(input_ids=ids).logits), ""
    merged = dict(wrapped.merge_and_unload().named_parameters())
    differences = [gap(weight, merged[name]) for name, weight in merged_weights(ours, lambda tensor: tensor)]
    yield "peft", "merged weights", max(differences), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    seeds = range(parser.parse_args().seeds)
    worst: dict[tuple[str, str, str], float] = {}
    with contextlib.redirect_stdout(sys.stderr):  # theirs greet
        for seed in seeds:
            batch = draw(seed)
            for peer, name, difference, how in (*verl(batch), *areal(batch), *(peft(seed) if seed < 3 else ())):
                worst[peer, name, how] = max(difference, worst.get((peer, name, how), 0.0))
    print(f"largest absolute difference over {len(seeds)} random ragged batches, losses with their gradients")
    for (peer, name, how), difference in worst.items():
        print(f"{difference:9.1e}  {peer:5s}  {name}{f'  ({how})' if how else ''}")
    beyond = [name for (_, name, _), difference in worst.items() if not difference <= LIMIT]
    print(f"above {LIMIT:g}: {', '.join(beyond) or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
