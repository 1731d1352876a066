"""`kill -9` of a training command at moments drawn by chance: started again, it goes on, trains on each episode once,
and comes to the weights of a run that was left alone."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.world import make_model, make_task
from trainer.checkpoint import newest
from trainer.metrics import read_metrics

pytestmark = [pytest.mark.namespace, pytest.mark.slow]
TASKS, EPOCHS, MEMBERS = 3, 2, 2
RECIPE = f"""
name = "tiny"
seed = 1
model = {{ name = "tiny", chat_format = "small" }}
agent = {{ max_turns = 2, max_tokens_per_turn = 10, context_tokens = 3000, min_answer_tokens = 8, max_malformed = 2 }}
[rollout]
group_size = {MEMBERS}
groups = 1
concurrency = 2
[train]
epochs = {EPOCHS}
checkpoint_every = 2
checkpoint_keep = 2
[serve]
engine = "torch"
max_running = 1
[ppo]
policy_lr = 1e-3
policy_minibatch = 2
critic_minibatch = 2
row_tokens = 6000
"""
processes = multiprocessing.get_context("forkserver")


def train(arguments, log):
    """In a process of its own: the command as a person types it, its words in a file."""
    from runtime.cli import run

    os.setsid()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    raise SystemExit(run(arguments))


@dataclass(frozen=True)
class World:
    root: Path

    def begin(self, name):
        """Start the run of that name, or go on with it."""
        out = self.root / name
        arguments = ["train", self.root / "recipe.toml", "--model", self.root / "model", "--tasks", self.root / "tasks"]
        arguments += ["--out", out, "--sandbox", "namespace"]
        if (out / "recipe.json").exists():
            arguments.append("--resume")
        process = processes.Process(target=train, args=([str(a) for a in arguments], self.root / f"{name}.log"))
        process.start()
        return process

    def finish(self, name):
        process = self.begin(name)
        process.join(300)
        assert process.exitcode == 0, (self.root / f"{name}.log").read_text()[-3000:]

    def trained(self, name):
        """Ids that were trained on, held against the count of episodes that the updates took."""
        lines = read_metrics(self.root / name / "metrics.jsonl")
        assert [line["step"] for line in lines] == list(range(1, TASKS * EPOCHS + 1))
        ids = newest(self.root / name / "checkpoints").trained
        assert sum(line["episodes"] for line in lines) == len(ids)  # none of them twice
        return ids

    def weights(self, name):
        state = load_file(self.root / name / "policy" / "model.safetensors")
        return torch.cat([tensor.flatten() for _, tensor in sorted(state.items())])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tasks of which two are passed by whoever leaves them alone, and the run that nobody disturbs."""
    root = tmp_path_factory.mktemp("world")
    (root / "recipe.toml").write_text(RECIPE)
    for number in range(TASKS):
        make_task(root / "tasks", f"t{number}", test="" if number == 0 else "assert True")
    make_model(root / "model", hidden=32)
    processes.set_forkserver_preload(["trainer.training", "transformers.models.llama.modeling_llama", "runtime.cli"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERMLOOM_STATE", str(root / "state"))
        here = World(root)
        here.finish("warm")  # what is made once, such as the base environment, is on nobody's clock
        started = time.monotonic()
        here.finish("straight")
        (root / "seconds").write_text(json.dumps(time.monotonic() - started))
        yield here


def drill(world, name, draws, kills):
    """Kill a run `kills` times, each time somewhere in what a whole one takes, and then let it come to its end."""
    whole_s = json.loads((world.root / "seconds").read_text())
    killed = 0
    while killed < kills:
        process = world.begin(name)
        process.join(draws.uniform(0, whole_s))
        if process.exitcode is not None:
            break  # it came to its end before
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += 1
    world.finish(name)
    drawn = itertools.product(range(TASKS), range(EPOCHS), range(MEMBERS))
    wanted = {f"t{task}/{epoch}/{member}" for task, epoch, member in drawn}
    assert world.trained(name) == world.trained("straight") == wanted
    assert torch.equal(world.weights(name), world.weights("straight"))
    assert not torch.equal(world.weights(name), load_start(world))
    left = [path.name for path in (world.root / name / "weights").iterdir()]
    assert left == [f"v{TASKS * EPOCHS:08d}"]


def load_start(world):
    state = load_file(world.root / "model" / "model.safetensors")
    return torch.cat([tensor.flatten() for _, tensor in sorted(state.items())])


def test_a_run_that_is_killed_three_times_is_the_run_that_was_left_alone(world):
    drill(world, "killed", random.Random(7), kills=3)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_a_kill_at_any_moment_changes_nothing(world, seed):
    drill(world, f"killed{seed}", random.Random(f"sweep/{seed}"), kills=1)
