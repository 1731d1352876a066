"""Checkpoints: whole or not there, and a resumed learner goes on as if nothing had happened."""

import pytest
import torch

from tests.trainer.test_ppo import episodes, learner, weights
from trainer.checkpoint import CheckpointInvalid, newest, read_checkpoint, restore, save_checkpoint
from trainer.model import load_model


def test_a_resumed_learner_goes_on_bit_for_bit(tmp_path):
    straight = learner()
    batches = [episodes(straight.policy, seed=s) for s in range(3)]
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


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest", "flipped"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    one = learner()
    save_checkpoint(tmp_path, one, version=1, trained=[], extra={})
    last = save_checkpoint(tmp_path, one, version=2, trained=[], extra={})
    victim = last / ("manifest.json" if damage == "no manifest" else "learner.pt")
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


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, learner(), version=1, trained=[], extra={})
    assert list(tmp_path.iterdir()) == []
    assert newest(tmp_path) is None


def test_old_ones_go_two_stay_and_the_model_loads(tmp_path):
    one = learner()
    for version in (1, 2, 3):
        save_checkpoint(tmp_path, one, version=version, trained=[], extra={})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert torch.equal(weights(load_model(tmp_path / "step-00000003" / "policy")), weights(one.policy))
    with pytest.raises(ValueError, match="at least two"):
        save_checkpoint(tmp_path, one, version=4, trained=[], extra={}, keep=1)


def test_a_newer_schema_is_refused_by_name(tmp_path):
    directory = save_checkpoint(tmp_path, learner(), version=1, trained=[], extra={})
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(CheckpointInvalid, match="newer version"):
        read_checkpoint(directory)
