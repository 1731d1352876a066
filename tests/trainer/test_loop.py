"""The loop: equal to the synchronous one at bound 0, bounded staleness above it, resumption, failures, stalls."""

from contextlib import nullcontext
from dataclasses import replace

import anyio
import msgspec
import pytest
import torch

from tests.trainer.test_ppo import weights
from tests.trainer.toy import CONFIG, DECOUPLED, TASKS, make_learner, make_loop, make_pool, play
from trainer.checkpoint import newest
from trainer.loop import Missing, NothingLearned, TrainingStalled, shuffled, task_order
from trainer.metrics import read_metrics
from trainer.model import save_model


def replace_reward(sample, reward):
    return msgspec.structs.replace(sample, reward=reward)


async def test_at_bound_0_it_is_the_synchronous_loop_bit_for_bit(tmp_path):
    plain, order = make_learner(), list(task_order(TASKS, epochs=CONFIG.epochs, seed=CONFIG.seed))
    async with make_pool() as pool:
        engine = pool.router.seats[0].client
        for step in range(len(order) // 2):
            save_model(plain.policy, tmp_path / f"plain{step}")
            await engine.update(tmp_path / f"plain{step}", step)
            samples = [
                await play(pool, group, member) for group in order[2 * step : 2 * step + 2] for member in range(2)
            ]
            plain.update(samples)
    async with make_pool() as pool:
        loop = make_loop(tmp_path / "run", pool)
        with anyio.fail_after(120):
            await loop.run()
    assert loop.learner.updates == plain.updates == 6
    assert torch.equal(weights(plain.policy), weights(loop.learner.policy))
    assert torch.equal(weights(plain.critic), weights(loop.learner.critic))
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["staleness_max"] == 0 for line in lines)


async def test_above_bound_0_rollouts_run_ahead_and_no_sample_is_older_than_the_bound(tmp_path):
    async with make_pool(slots=4) as pool:
        loop = make_loop(tmp_path, pool, learner=make_learner(DECOUPLED), config=replace(CONFIG, bound=2))
        with anyio.fail_after(120):
            await loop.run()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert {line["staleness_max"] for line in lines} <= {0, 1, 2}
    assert max(line["staleness_max"] for line in lines) > 0
    assert loop.buffer.counts["admitted"] == 24


async def test_a_bound_without_the_decoupled_objective_is_refused(tmp_path):
    with pytest.raises(ValueError, match="behaviour_cap"):
        make_loop(tmp_path, make_pool(), config=replace(CONFIG, bound=1))


async def test_a_killed_run_goes_on_where_its_checkpoint_was_and_comes_to_the_same_weights(tmp_path):
    class Killed(Exception):
        pass

    def kill(line):
        if line["step"] == 3:
            raise Killed

    async with make_pool() as pool:
        straight = make_loop(tmp_path / "straight", pool)
        await straight.run()
    with pytest.raises(Killed):
        async with make_pool() as pool:
            await make_loop(tmp_path / "run", pool, on_step=kill).run()
    assert newest(tmp_path / "run" / "checkpoints").version == 2
    async with make_pool() as pool:
        again = make_loop(tmp_path / "run", pool, learner=make_learner(seed=5))
        again.learner.seed = 0
        await again.run()
    assert torch.equal(weights(straight.learner.policy), weights(again.learner.policy))
    trained = [newest(tmp_path / name / "checkpoints").trained for name in ("straight", "run")]
    assert trained[0] == trained[1]
    lines = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("straight", "run")]
    counted = [[(n["step"], n["episodes_admitted"], n["episodes_trained"]) for n in run] for run in lines]
    assert counted[0] == counted[1] == [(step, 4 * step, 4 * step) for step in range(1, 7)]


async def test_a_run_that_has_ended_has_nothing_left_to_do_though_what_failed_would_end_well_now(tmp_path):
    async def failing(group, member):
        return Missing(reason="gave_up") if group.task == "task1" else await play(pool, group, member)

    for rollout in (failing, None):
        async with make_pool() as pool:
            loop = make_loop(tmp_path, pool, rollout=rollout)
            with anyio.fail_after(120):
                await loop.run()
        assert loop.learner.updates == 5
    assert newest(tmp_path / "checkpoints").extra["ended"]


async def test_episodes_without_a_reward_are_left_out_and_others_take_their_place(tmp_path):
    batches = []
    async with make_pool() as pool:

        async def failing(group, member):
            if group.task == "task1" or (group.task == "task2" and member == 1):
                return Missing(reason="gave_up")
            return await play(pool, group, member)

        loop = make_loop(tmp_path, pool, rollout=failing)
        inner = loop.learner.update
        loop.learner.update = lambda samples: batches.append(samples) or inner(samples)
        with anyio.fail_after(120):
            await loop.run()
    ids = [sample.id for batch in batches for sample in batch]
    assert len(ids) == len(set(ids))
    assert all(len(batch) >= 4 for batch in batches)
    assert not any(name.startswith("task1/") or name == "task2/0/1" for name in ids)
    assert loop.buffer.counts["failed/gave_up"] == 6


async def test_a_stall_ends_the_run_and_names_what_is_waited_for(tmp_path):
    async def stuck(group, member):
        await anyio.sleep_forever()

    async with make_pool() as pool:
        loop = make_loop(tmp_path, pool, rollout=stuck, config=replace(CONFIG, patience_s=0.2))
        await anyio.sleep(0.3)  # what passes before the first episode is no stall
        with pytest.raises(TrainingStalled, match=r"has not moved for 0.2 s: task\d/0/0 for \d+ s"):
            await loop.run()


async def test_episodes_that_all_end_for_nothing_are_a_stall_however_many_end(tmp_path):
    async def refused(group, member):
        await anyio.sleep(0.01)
        return Missing(reason="gave_up: EngineFault")

    async with make_pool() as pool:
        config = replace(CONFIG, patience_s=0.2, epochs=1_000_000)
        with (
            anyio.fail_after(60),
            pytest.raises(TrainingStalled, match=r"0.2 s: \d+ episodes without a reward \(gave_up: EngineFault\)"),
        ):
            await make_loop(tmp_path, pool, rollout=refused, config=config).run()


async def test_a_run_that_comes_to_no_update_is_no_success(tmp_path):
    async def refused(group, member):
        return Missing(reason="environment")

    async with make_pool() as pool:
        with (
            anyio.fail_after(60),
            pytest.raises(NothingLearned, match=r"24 of them without a reward \(24 environment\)"),
        ):
            await make_loop(tmp_path, pool, rollout=refused).run()


async def test_a_measurement_that_a_kill_has_cut_off_is_made_up_for(tmp_path):
    class Killed(Exception):
        pass

    measured = []

    async def killed(step, moved):
        raise Killed

    async def evaluate(step, moved):
        measured.append(step)
        return {"held_out_pass_rate": step / 10}

    config = replace(CONFIG, evaluate_every=2, checkpoint_every=4)
    for how, expected in ((killed, pytest.raises(Killed)), (evaluate, nullcontext())):
        async with make_pool() as pool:
            with expected, anyio.fail_after(120):
                await make_loop(tmp_path, pool, evaluate=how, config=config).run()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert measured == [2, 4, 6]
    assert [line.get("held_out_pass_rate") for line in lines] == [None, 0.2, None, 0.4, None, 0.6]


async def test_a_drained_run_ends_with_a_checkpoint_after_the_update_in_work(tmp_path):
    async with make_pool() as pool:
        loop = make_loop(tmp_path, pool, on_step=lambda _: loop.drain())
        await loop.run()
    assert loop.learner.updates == 1
    assert newest(tmp_path / "checkpoints").version == 1


async def test_an_episode_that_outlasts_an_update_holds_nobody_up_and_is_used_or_dropped_by_its_age(tmp_path):
    released = anyio.Event()

    async with make_pool(slots=4) as pool:

        async def one_is_slow(group, member):
            sample = await play(pool, group, member)
            if group.epoch == 0 and group.name == first.name:
                await released.wait()
            return sample

        config = replace(CONFIG, bound=1)
        first = next(task_order(TASKS, epochs=1, seed=config.seed))
        loop = make_loop(
            tmp_path,
            pool,
            learner=make_learner(DECOUPLED),
            config=config,
            rollout=one_is_slow,
            on_step=lambda line: released.set() if line["step"] == 3 else None,
        )
        with anyio.fail_after(120):
            await loop.run()
    assert loop.learner.updates >= 5
    assert loop.buffer.counts["dropped"] == 2
    loop.buffer.check()


def test_the_order_of_tasks_is_a_function_of_the_seed():
    once, again, other = (list(task_order(TASKS, epochs=2, seed=seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert sorted(group.task for group in once[:6]) == TASKS
    assert [group.task for group in once[:6]] != [group.task for group in once[6:]]


async def test_shuffled_rewards_change_owner_and_nothing_else(tmp_path):
    async with make_pool() as pool:
        samples = [await play(pool, group, 0) for group in list(task_order(TASKS, epochs=4, seed=1))]
    samples = [replace_reward(sample, float(index)) for index, sample in enumerate(samples)]
    got = shuffled(samples, seed="3/1")
    assert sorted(sample.reward for sample in got) == [sample.reward for sample in samples]
    assert [sample.reward for sample in got] != [sample.reward for sample in samples]
    assert [replace_reward(sample, 0.0) for sample in got] == [replace_reward(sample, 0.0) for sample in samples]
    assert got == shuffled(samples, seed="3/1") != shuffled(samples, seed="3/2")
