"""The update: departures from the textbook, invariances, and that it learns."""

import copy

import msgspec
import pytest
import torch

from trainer.batch import collate
from trainer.model import Critic, Scorer, policy_logprobs, recompute, small_llama
from trainer.ppo import Learner, PPOConfig, TrainingDiverged
from trainer.sample import Sample

CONFIG = PPOConfig(
    policy_lr=1e-3,
    critic_lr=1e-3,
    warmup_steps=0,
    policy_minibatch=4,
    critic_minibatch=4,
    micro_batch=4,
    row_tokens=64,
    temperature=1.0,
)
VOCABULARY = 11


def episodes(policy, count=8, seed=0, prompt=3, length=4, temperature=1.0):
    """Sample from the policy itself; reward 1 when the first sampled token is 7."""
    torch.manual_seed(seed)
    samples = []
    for i in range(count):
        ids = [int(x) for x in torch.randint(VOCABULARY, (prompt,))]
        logprobs = [0.0] * prompt
        with torch.no_grad():
            for _ in range(length):
                distribution = torch.log_softmax(policy(input_ids=torch.tensor([ids])).logits[0, -1] / temperature, -1)
                token = int(torch.multinomial(distribution.exp(), 1))
                ids.append(token)
                logprobs.append(float(distribution[token]))
        samples.append(
            Sample(id=f"e{i}", group=f"g{i // 4}", ids=ids, mask=[0] * prompt + [1] * length, logprobs=logprobs,
                   versions=[-1] * prompt + [0] * length, reward=float(ids[prompt] == 7))
        )  # fmt: skip
    return samples


def rewarded(samples):
    """Every second one, whatever it holds: advantages of both signs."""
    return [msgspec.structs.replace(sample, reward=float(i % 2)) for i, sample in enumerate(samples)]


def learner(config=CONFIG, seed=0):
    policy = small_llama(VOCABULARY, hidden=32, layers=1, seed=seed)
    return Learner(policy, Critic(copy.deepcopy(policy)), config, seed=seed)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def gradients(one, samples):
    """What each step of an update hands to policy and critic; clipped to one length they would hide a wrong share."""
    seen = []
    for model, optimiser in ((one.policy, one.policy_optimiser), (one.critic, one.critic_optimiser)):
        optimiser.register_step_pre_hook(
            lambda *_, model=model: seen.append(
                torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
            )
        )
    one.update(samples)
    assert all(float(gradient.norm()) > 0.1 for gradient in seen)
    return seen


def test_update_is_deterministic():
    runs = []
    for _ in range(2):
        one = learner()
        metrics = one.update(rewarded(episodes(one.policy)))
        runs.append((weights(one.policy), weights(one.critic), metrics))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert runs[0][2] == runs[1][2]


def test_micro_batches_change_no_gradient():
    for reduction in ("sequence_mean", "token_mean"):
        results = []
        for micro in (1, 3, 8):
            one = learner(
                with_changes(
                    micro_batch=micro,
                    reduction=reduction,
                    policy_minibatch=8,
                    critic_minibatch=8,
                    epochs=1,
                    grad_clip=1e9,
                )
            )
            results.append(gradients(one, rewarded(episodes(one.policy))))
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, atol=1e-6, rtol=1e-5)


def with_changes(**changes):
    return msgspec.structs.replace(CONFIG, **changes)


def test_the_decoupled_objective_at_staleness_zero_is_plain_ppo():
    results = []
    for cap in (None, 2.0):
        one = learner(with_changes(behaviour_cap=cap, epochs=1, policy_minibatch=8, grad_clip=1e9))
        results.append(gradients(one, rewarded(episodes(one.policy))))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)


def test_critic_warm_up_leaves_the_policy_alone():
    one = learner(with_changes(critic_warmup=1))
    before, critic_before = weights(one.policy), weights(one.critic)
    one.update(episodes(one.policy))
    assert torch.equal(before, weights(one.policy))
    assert not torch.equal(critic_before, weights(one.critic))
    one.update(episodes(one.policy, seed=1))
    assert not torch.equal(before, weights(one.policy))


def test_a_step_that_is_not_finite_is_skipped_with_evidence_and_ends_the_run_when_repeated():
    kept = []
    one = learner(with_changes(max_skips=3, epochs=1))
    one._evidence = lambda reason, samples: kept.append((reason, len(samples)))
    before = weights(one.policy)
    poisoned = episodes(one.policy, count=4)
    poisoned[0] = msgspec.structs.replace(poisoned[0], reward=float("nan"))
    metrics = one.update(poisoned)
    assert metrics["skipped_steps"] == 2
    assert kept[0][1] == 4
    assert torch.equal(before, weights(one.policy))
    one.update(poisoned)
    with pytest.raises(TrainingDiverged, match="3 non-finite critic steps"):
        one.update(poisoned)


def test_finite_steps_of_the_critic_do_not_hide_a_policy_that_never_moves(monkeypatch):
    one = learner(with_changes(max_skips=2, epochs=1))
    whole = one._advantages
    monkeypatch.setattr(one, "_advantages", lambda batch, values: (whole(batch, values)[0] * float("nan"), values))
    batch = episodes(one.policy, count=4)
    assert one.update(batch)["skipped_steps"] == 1
    with pytest.raises(TrainingDiverged, match="2 non-finite policy steps"):
        one.update(batch)


def test_an_update_is_refused_when_sampler_and_learner_disagree():
    one = learner(with_changes(behaviour_cap=2.0, max_gap=0.1))
    shifted = episodes(one.policy, temperature=3.0)
    with pytest.raises(TrainingDiverged, match="differ"):
        one.update(shifted + episodes(learner(seed=5).policy, seed=3, temperature=0.2))


def test_the_kl_tripwire_ends_the_epochs():
    one = learner(with_changes(policy_lr=0.3, max_kl=0.01, epochs=8))
    assert one.update(rewarded(episodes(one.policy)))["kl_tripped"] == 1


def test_the_ratio_tripwire_ends_the_epochs():
    one = learner(with_changes(policy_lr=0.3, max_kl=1e9, max_ratio=1.5, epochs=8))
    assert one.update(rewarded(episodes(one.policy)))["ratio_tripped"] == 1


def test_what_failed_may_weigh_less_than_what_passed_and_the_critic_does_not_see_it():
    one, plain = learner(msgspec.structs.replace(CONFIG, negative_weight=0.25)), learner()
    batch = collate(rewarded(episodes(one.policy)))
    values = torch.full_like(batch.behaviour, 0.5) * batch.mask
    (weighted, returns), (whole, plain_returns) = (each._advantages(batch, values) for each in (one, plain))
    assert (whole < 0).any()
    assert (whole > 0).any()
    assert torch.equal(weighted, torch.where(whole < 0, 0.25 * whole, whole))
    assert torch.equal(returns, plain_returns)


def test_the_entropy_bonus_reaches_the_weights():
    entropies = []
    for coefficient in (-0.5, 0.0, 0.5):
        one = learner(with_changes(entropy_coef=coefficient, epochs=4, max_kl=1e9))
        batch = episodes(one.policy)
        one.update(batch)
        _, spread = policy_logprobs(Scorer(one.policy), collate(batch), temperature=1.0, row_tokens=64, entropy="value")
        entropies.append(float(spread.sum()))
    assert entropies == sorted(set(entropies))


def test_recomputed_activations_change_no_number():
    results = []
    for again in (False, True):
        policy = small_llama(VOCABULARY, hidden=32, layers=2)
        one = Learner(recompute(policy) if again else policy, Critic(copy.deepcopy(policy)), CONFIG)
        results.append((one.update(rewarded(episodes(one.policy))), weights(one.policy), weights(one.critic)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])


def test_bfloat16_is_what_is_computed_in_and_nothing_that_is_kept():
    one = learner(with_changes(bf16=True, behaviour_cap=2.0))
    batch, seen = episodes(one.policy), set()
    for part in one.policy.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda part, inputs, out: seen.add(out.dtype))
    before = weights(one.policy)
    got = one.update(rewarded(batch))
    assert seen == {torch.bfloat16}
    held = [value for state in one.policy_optimiser.state.values() for value in state.values()]
    held += [*one.policy.parameters(), *one.critic.parameters()]
    assert {value.dtype for value in held} == {torch.float32}
    moved = (weights(one.policy) - before).abs()
    assert 0 < float(moved[moved > 0].min()) < 2**-9 * float(before.abs().max()), (
        "steps too small for bfloat16 are kept"
    )
    assert 0 < got["behaviour_gap"] < 0.05
    exact = learner(with_changes(behaviour_cap=2.0)).update(batch)
    assert got["entropy"] == pytest.approx(exact["entropy"], abs=0.02)


def test_the_policy_may_come_to_rest():
    one = learner(with_changes(policy_anneal=2, critic_lr=1e-3))
    rates = []
    for seed in range(3):
        before = weights(one.policy)
        one.update(episodes(one.policy, seed=seed))
        rates.append(one.policy_optimiser.param_groups[0]["lr"])
    assert rates == [1e-3, 5e-4, 0.0]
    assert torch.equal(weights(one.policy), before)
    assert one.critic_optimiser.param_groups[0]["lr"] == 1e-3


def test_engines_that_serve_another_policy_are_told_without_the_decoupled_objective_too():
    one = learner(with_changes(behaviour_cap=None, max_gap=0.01))
    batch = episodes(one.policy)
    assert 0 < one.update(batch)["behaviour_gap"] < 1e-4
    other = learner(with_changes(behaviour_cap=None, max_gap=0.01))
    before = weights(other.policy)
    drifted = [msgspec.structs.replace(s, logprobs=[p - 0.1 for p in s.logprobs]) for s in batch]
    with pytest.raises(TrainingDiverged, match=r"differ by 0.1 nats a token"):
        other.update(drifted)
    assert torch.equal(weights(other.policy), before)


@pytest.mark.parametrize("advantage", ["gae", "grpo", "rloo"])
def test_it_learns_a_one_token_task(advantage):
    config = with_changes(
        advantage=advantage, policy_minibatch=32, critic_minibatch=32, micro_batch=32, row_tokens=512, policy_lr=5e-3
    )
    one = learner(config)
    first = last = 0.0
    for step in range(12):
        batch = episodes(one.policy, count=48, seed=step, length=2)
        last = one.update(batch)["reward"]
        first = first if step else last
    assert first < 0.3
    assert last > 0.6


def test_entropy_is_reported_and_temperature_is_the_samplers():
    one = learner(with_changes(temperature=0.5))
    samples = episodes(one.policy, temperature=0.5)
    logprobs, _ = policy_logprobs(Scorer(one.policy), collate(samples), temperature=0.5, row_tokens=64)
    torch.testing.assert_close(logprobs, collate(samples).behaviour, atol=1e-5, rtol=0)
    assert one.update(samples)["entropy"] > 0
