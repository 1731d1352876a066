"""Two processes, started by `torchrun` on the CPU, train as one does."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.scenarios import VARIANTS, learner, model, outcomes, state
from tests.trainer.test_commands import TINY
from tests.trainer.test_model import make_samples
from tests.trainer.world import make_model, make_task
from trainer.checkpoint import newest, restore, save_checkpoint
from trainer.metrics import read_metrics
from trainer.model import Critic, load_model
from trainer.parallel import ALONE
from trainer.ppo import Learner
from trainer.recipe import load_recipe

NAMES = [
    *(name for name in VARIANTS if name != "bfloat16"),
    "tied and recomputed",
    "adapters",
    "fine-tuning",
    "fine-tuning in two goes",
    "fine-tuning of adapters",
    "resumed from one",
    "resumed from ours",
]


def torchrun(*command, environment=()):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*start, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())} | dict(environment),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What one process came to, and what two did; the second also from a checkpoint of the first."""
    place = tmp_path_factory.mktemp("team")
    halted = learner(ALONE)
    halted.update(make_samples(seed=0, count=7))
    save_checkpoint(place / "one", halted, version=1, trained=[], extra={})
    got = torchrun("-m", "tests.trainer.scenarios", str(place))
    assert got.returncode == 0, got.stderr[-4000:]
    together = torch.load(place / "outcomes.pt")
    (place / "ours").rename(place / "theirs")
    return outcomes(ALONE, place), together, place


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_are_those_of_one_process(both, name):
    (metrics, weights), (their_metrics, their_weights) = both[0][name], both[1][name]
    for ours, theirs in zip(metrics, their_metrics, strict=True):
        assert theirs == pytest.approx(ours, rel=2e-4, abs=2e-6)
    assert weights.keys() == their_weights.keys()
    for weight in weights:  # where a gradient is as small as Adam's epsilon, its rounding is some hundredths of a step
        torch.testing.assert_close(their_weights[weight], weights[weight], atol=5e-5, rtol=1e-3)


@pytest.mark.timeout(300)
def test_in_bfloat16_the_weights_move_the_same_way(both):
    (metrics, weights), (their_metrics, their_weights) = both[0]["bfloat16"], both[1]["bfloat16"]
    for ours, theirs in zip(metrics, their_metrics, strict=True):
        for name in ("policy_loss", "value_loss", "entropy"):
            assert theirs[name] == pytest.approx(ours[name], abs=0.02)
    start = state(model())
    moved, theirs_moved = (
        torch.cat([(after[name] - start[name]).reshape(-1) for name in start]) for after in (weights, their_weights)
    )
    assert torch.cosine_similarity(moved, theirs_moved, dim=0) > 0.8


@pytest.mark.namespace
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_team_trains_by_a_recipe_and_one_process_goes_on(tmp_path):
    make_task(tmp_path / "tasks", "a")
    make_model(tmp_path / "model")
    (tmp_path / "tiny.toml").write_text(TINY.replace("epochs = 1", "epochs = 2\ncheckpoint_every = 1"))
    command = [str(Path(sys.executable).with_name("termloom")), "train", str(tmp_path / "tiny.toml"), "--json"]
    command += ["--tasks", str(tmp_path / "tasks"), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "run")]
    command += ["--sandbox", "namespace"]
    got = torchrun("--no-python", *command, environment={"TERMLOOM_STATE": str(tmp_path / "state")})
    assert got.returncode == 0, got.stderr[-4000:]
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    load_model(tmp_path / "run" / "policy")
    last = newest(tmp_path / "run" / "checkpoints")
    assert last.version == 2
    assert (last.directory / "learner" / "__1_0.distcp").exists(), "the second process has written its own part"
    alone = learner_of(tmp_path)
    restore(alone, last)
    assert alone.updates == 2
    for name, weight in load_model(tmp_path / "run" / "policy").named_parameters():
        assert torch.equal(weight, dict(alone.policy.named_parameters())[name])


def learner_of(tmp_path):
    """A fresh learner, in this process, of the shape that the team's run has."""
    policy = load_model(tmp_path / "model")
    return Learner(policy, Critic(copy.deepcopy(policy)), load_recipe(tmp_path / "tiny.toml").ppo)
