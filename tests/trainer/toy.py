"""A toy world for the loop: a tiny model served in process, episodes of a few tokens, no sandbox."""

import copy

import msgspec

from trainer.handover import PolicyPool
from trainer.loop import Group, Loop, LoopConfig
from trainer.model import Critic, small_llama
from trainer.policy.protocol import Sampling
from trainer.policy.torch_engine import TorchEngine
from trainer.ppo import Learner, PPOConfig
from trainer.sample import Sample

VOCABULARY = 11
PPO = PPOConfig(
    policy_lr=1e-3,
    critic_lr=1e-3,
    warmup_steps=0,
    policy_minibatch=4,
    critic_minibatch=4,
    micro_batch=4,
    row_tokens=64,
    temperature=1.0,
)
DECOUPLED = msgspec.structs.replace(PPO, behaviour_cap=2.0, max_gap=10.0)
CONFIG = LoopConfig(batch=4, group_size=2, bound=0, epochs=2, seed=3, checkpoint_every=2, concurrency=8)
TASKS = [f"task{i}" for i in range(6)]


def make_learner(config=PPO, seed=0):
    policy = small_llama(VOCABULARY, hidden=32, layers=1, seed=seed)
    return Learner(policy, Critic(copy.deepcopy(policy)), config, seed=seed)


def make_pool(*, slots=1):
    return PolicyPool({"torch": TorchEngine(small_llama(VOCABULARY, hidden=32, layers=1, seed=99), slots=slots)})


async def play(pool, group: Group, member: int) -> Sample:
    """One episode: the task's number is the prompt; reward 1 when the first token is even."""
    name = f"{group.name}/{member}"
    prompt = [1, int(group.task.removeprefix("task")) % VOCABULARY, 2]
    got = await pool.generate(prompt, Sampling(max_tokens=3, seed=sum(name.encode())), request_id=name)
    return Sample(
        id=name,
        group=group.name,
        ids=prompt + got.ids,
        mask=[0] * 3 + [1] * 3,
        logprobs=[0.0] * 3 + got.logprobs,
        versions=[-1] * 3 + got.versions,
        reward=float(got.ids[0] % 2 == 0),
        turns=1,
    )


def make_loop(directory, pool, *, learner=None, config=CONFIG, rollout=None, tasks=TASKS, **more):
    async def usual(group, member):
        return await play(pool, group, member)

    learner = learner or make_learner()
    return Loop(
        learner=learner, pool=pool, rollout=rollout or usual, tasks=tasks, config=config, directory=directory, **more
    )
