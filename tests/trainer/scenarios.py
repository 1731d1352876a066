"""What one process and a team of two must come to alike; run by `torchrun` as a script with a directory."""

import copy
import sys
from pathlib import Path

import msgspec
import torch

from tests.trainer.test_model import make_samples
from trainer.checkpoint import newest, restore, save_checkpoint
from trainer.follow import follow
from trainer.lora import LoRAConfig
from trainer.model import Critic, recompute, small_llama
from trainer.parallel import is_follower, open_team
from trainer.ppo import Learner, PPOConfig
from trainer.sample import Example
from trainer.sft import SFTConfig, fine_tune

VOCABULARY = 31
PPO = PPOConfig(
    policy_lr=1e-3,
    critic_lr=1e-3,
    warmup_steps=0,
    policy_minibatch=5,
    critic_minibatch=4,
    micro_batch=2,
    row_tokens=16,
    temperature=0.8,
    behaviour_cap=2.0,
    max_gap=100.0,
    max_kl=100.0,
    entropy_coef=0.01,
    epochs=2,
)
VARIANTS = {
    "plain": {},
    "token mean": {"reduction": "token_mean"},
    "bfloat16": {"bf16": True},
    "tripped": {"max_kl": 1e-9},
    "relative": {"advantage": "grpo"},
}
LORA = LoRAConfig(rank=4, alpha=8.0)


def model(*, tied=False, checkpointed=False):
    """The head is tied by hand, as transformers does it."""
    made = small_llama(VOCABULARY, hidden=32, layers=2)
    if tied:
        made.lm_head.weight = made.model.embed_tokens.weight
    return recompute(made) if checkpointed else made


def learner(team, *, lora=None, policy=None, **changes):
    policy = policy or model()
    config = msgspec.structs.replace(PPO, **changes)
    critic = Critic(copy.deepcopy(policy)) if config.advantage == "gae" else None
    return Learner(policy, critic, config, seed=1, team=team, lora=lora)


def state(module):
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def updates(one, count=2):
    return [one.update(make_samples(seed=s, count=7)) for s in range(count)], state(one.policy)


def tuned(team, *, lora=None, goes=(5,), checkpoints=None):
    """Stopped after so many steps in all, each time, and begun again from the checkpoints."""
    seen = []
    examples = [Example(id=s.id, ids=s.ids, weights=[0.5 * m for m in s.mask]) for s in make_samples(seed=4, count=11)]
    config = SFTConfig(learning_rate=1e-2, batch=5, epochs=2, row_tokens=12)
    for most in goes:
        one = model()
        fine_tune(
            one,
            examples,
            config,
            team=team,
            lora=lora,
            checkpoints=checkpoints,
            on_step=lambda step, got, most=most: seen.append(got) or len(seen) == most,
        )
    return seen, state(one)


def outcomes(team, directory: Path):
    """Everything by name: (metrics, weights). Goes on from the checkpoint in `directory`/one, leaves one in /ours."""
    got = {name: updates(learner(team, **changes)) for name, changes in VARIANTS.items()}
    got["tied and recomputed"] = updates(learner(team, policy=model(tied=True, checkpointed=True)))
    got["adapters"] = updates(learner(team, lora=LORA))
    got["fine-tuning"] = tuned(team)
    got["fine-tuning in two goes"] = tuned(team, goes=(3, 5), checkpoints=directory / f"tuned-by-{team.size}")
    got["fine-tuning of adapters"] = tuned(team, lora=LORA)
    halted = learner(team)
    halted.update(make_samples(seed=0, count=7))
    save_checkpoint(directory / "ours", halted, version=1, trained=[], extra={})
    for name in ("one", "ours"):
        resumed = learner(team)
        restore(resumed, newest(directory / name))
        got[f"resumed from {name}"] = [resumed.update(make_samples(seed=1, count=7))], state(resumed.policy)
    return got


if __name__ == "__main__":
    if is_follower():
        sys.exit(follow())
    place = Path(sys.argv[1])
    with open_team() as together:
        torch.save(outcomes(together, place), place / "outcomes.pt")
