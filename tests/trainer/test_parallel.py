"""Two processes, started by `torchrun` on the CPU, train as one does."""

import os
import subprocess
import sys

import pytest
import torch

from tests.trainer.scenarios import VARIANTS, learner, model, outcomes, state
from tests.trainer.test_model import make_samples
from trainer.checkpoint import save_checkpoint
from trainer.parallel import ALONE

NAMES = [
    *(name for name in VARIANTS if name != "bfloat16"),
    "tied and recomputed",
    "adapters",
    "fine-tuning",
    "fine-tuning of adapters",
    "resumed from one",
    "resumed from ours",
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What one process came to, and what two did; the second also from a checkpoint of the first."""
    place = tmp_path_factory.mktemp("team")
    halted = learner(ALONE)
    halted.update(make_samples(seed=0, count=7))
    save_checkpoint(place / "one", halted, version=1, trained=[], extra={})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    got = subprocess.run(
        [*command, "-m", "tests.trainer.scenarios", str(place)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
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
    for weight in weights:
        torch.testing.assert_close(their_weights[weight], weights[weight], atol=1e-5, rtol=1e-3)


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
