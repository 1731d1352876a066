"""Checkpoints: whole or not there, and a resumed learner goes on as if nothing had happened."""

import copy
import os

import pytest
import torch

from tests.trainer.test_ppo import CONFIG, VOCABULARY, episodes, learner, rewarded, weights, with_changes
from trainer.checkpoint import CheckpointForeign, CheckpointInvalid, newest, read_checkpoint, restore, save_checkpoint
from trainer.model import Critic, load_model, small_llama
from trainer.ppo import Learner


def test_a_resumed_learner_goes_on_bit_for_bit(tmp_path):
    straight = learner()
    batches = [rewarded(episodes(straight.policy, seed=s)) for s in range(3)]
    for batch in batches:
        straight.update(batch)
    halted = learner()
    halted.update(batches[0])
    save_checkpoint(tmp_path, halted, version=1, trained=[s.id for s in batches[0]], extra={"seed": 0})
    resumed = learner(seed=0)
    torch.nn.init.normal_(next(resumed.policy.parameters()))
    found = newest(tmp_path)
    assert found is not None
    assert found.trained == {s.id for s in batches[0]}
    restore(resumed, found)
    for batch in batches[1:]:
        resumed.update(batch)
    assert torch.equal(weights(straight.policy), weights(resumed.policy))
    assert torch.equal(weights(straight.critic), weights(resumed.critic))


def test_an_optimiser_without_a_step_is_restored_without_one(tmp_path):
    straight, halted, resumed = (learner(with_changes(critic_warmup=1)) for _ in range(3))
    batches = [rewarded(episodes(straight.policy, seed=s)) for s in range(2)]
    halted.update(batches[0])
    save_checkpoint(tmp_path, halted, version=1, trained=[], extra={})
    restore(resumed, newest(tmp_path))
    assert not resumed.policy_optimiser.state
    for batch in batches:
        straight.update(batch)
    resumed.update(batches[1])
    assert torch.equal(weights(straight.policy), weights(resumed.policy))


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_checkpoint(tmp_path, learner(), version=1, trained=[], extra={})
    found = newest(tmp_path)
    wider = small_llama(VOCABULARY, hidden=64, layers=1)
    with pytest.raises(CheckpointInvalid, match="does not fit"):
        restore(Learner(wider, Critic(copy.deepcopy(wider)), CONFIG), found)
    with pytest.raises(CheckpointInvalid, match="is in one of them only"):
        restore(Learner(learner().policy, None, with_changes(advantage="grpo")), found)


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest", "flipped"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    one = learner()
    save_checkpoint(tmp_path, one, version=1, trained=[], extra={})
    last = save_checkpoint(tmp_path, one, version=2, trained=[], extra={})
    victim = last / ("manifest.json" if damage == "no manifest" else "learner/__0_0.distcp")
    if damage == "cut":
        victim.write_bytes(victim.read_bytes()[:100])
    elif damage == "flipped":
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    else:
        victim.unlink()
    with pytest.raises(CheckpointInvalid):
        read_checkpoint(last)
    found = newest(tmp_path)
    assert found is not None
    assert found.version == 1


def test_where_every_checkpoint_is_damaged_nothing_begins_again(tmp_path):
    for version in (1, 2):
        (save_checkpoint(tmp_path, learner(), version=version, trained=[], extra={}) / "trained.txt").unlink()
    with pytest.raises(CheckpointInvalid, match="no other checkpoint is whole"):
        newest(tmp_path)


def test_a_damaged_later_one_does_not_push_out_what_is_written_now(tmp_path):
    one = learner()
    for version in (1, 8, 9):
        save_checkpoint(tmp_path, one, version=version, trained=[], extra={}, keep=3)
    for version in (8, 9):
        (tmp_path / f"step-{version:08d}" / "trained.txt").unlink()
    assert newest(tmp_path).version == 1
    save_checkpoint(tmp_path, one, version=2, trained=[], extra={})
    assert newest(tmp_path).version == 2


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, learner(), version=1, trained=[], extra={})
    assert list(tmp_path.iterdir()) == []
    assert newest(tmp_path) is None


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / ".step-00000001.1"
    (left / "learner").mkdir(parents=True)
    save_checkpoint(tmp_path, learner(), version=2, trained=[], extra={})
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_old_ones_go_two_stay_and_the_model_loads(tmp_path):
    one = learner()
    for version in (1, 2, 3):
        save_checkpoint(tmp_path, one, version=version, trained=[], extra={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert torch.equal(weights(load_model(tmp_path / "step-00000003" / "policy")), weights(one.policy))
    with pytest.raises(ValueError, match="at least two"):
        save_checkpoint(tmp_path, one, version=4, trained=[], extra={}, keep=1)


@pytest.mark.parametrize(("schema", "age"), [(1, "older"), (99, "newer")])
def test_another_schema_is_refused_by_name(tmp_path, schema, age):
    directory = save_checkpoint(tmp_path, learner(), version=1, trained=[], extra={})
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema": 2', f'"schema": {schema}'))
    with pytest.raises(CheckpointForeign, match=f"{age} version"):
        read_checkpoint(directory)
    with pytest.raises(CheckpointForeign, match=f"{age} version"):
        newest(tmp_path)
