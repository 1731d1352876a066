"""Bodies of small training and evaluation jobs, for tests that give them to a daemon."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runtime.chat.script import Reply
from tests.trainer.world import make_model, make_task
from trainer.asked import PlayAsked, TrainAsked
from trainer.recipe import load_recipe

TINY = """
name = "tiny"
model = {{ name = "tiny", chat_format = "small" }}
agent = {{ max_turns = 1, max_tokens_per_turn = 8, context_tokens = 3000, min_answer_tokens = 8 }}
[rollout]
group_size = 2
groups = 1
concurrency = 2
[train]
epochs = {epochs}
checkpoint_every = 1
evaluate_every = 4
[evaluate]
agent = {{ max_turns = 1 }}
[serve]
engine = "torch"
[ppo]
policy_minibatch = 2
critic_minibatch = 2
row_tokens = 6000
"""


def solves(request: dict, number: int) -> Reply:
    """A scripted model that writes the file of task `a`, then says that it is done."""
    begun = any(message["role"] == "assistant" for message in request["messages"])
    return Reply(text="<action>done</action>" if begun else "<command>echo a > a.txt</command>", delay_s=0.05)


def training(tmp_path: Path, *, epochs: int, held_out: bool = False) -> dict:
    """The body of a training job on one task, measured on it where `held_out` says so."""
    make_task(tmp_path / "tasks", "a")
    (tmp_path / "tiny.toml").write_text(TINY.format(epochs=epochs))
    asked = TrainAsked(
        recipe=msgspec.to_builtins(load_recipe(tmp_path / "tiny.toml")),
        model=str(make_model(tmp_path / "model")),
        tasks=(str(tmp_path / "tasks"),),
        held_out=(str(tmp_path / "tasks"),) if held_out else (),
        out=str(tmp_path / "run"),
    )
    return {"kind": "train", "options": asked.options()}


def measuring(tmp_path: Path, base_url: str, *, attempts: int) -> dict:
    task = make_task(tmp_path / "tasks", "a")
    asked = PlayAsked(command="evaluate", tasks=(str(task),), attempts=attempts, out=str(tmp_path / "measured"))
    return {
        "kind": "evaluate",
        "settings": {"chat": {"base_url": base_url, "model": "any"}},
        "options": asked.options(),
    }
