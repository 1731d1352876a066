"""A small real world for tests: task directories, a byte-level tokeniser, a tiny model, the daemonless engine."""

from contextlib import asynccontextmanager
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.limits import Limits
from runtime.settings import LimitSettings, PathSettings
from runtime.task import Task, TaskConfig, write_task
from sandbox.base import BASE_DOCKERFILE
from sandbox.open import open_engine
from sandbox.spec import File
from trainer.arena import Arena
from trainer.model import save_model, small_llama

MARKERS = ["<|turn|>", "<|end|>"]


def make_task(root: Path, name: str, *, dockerfile=BASE_DOCKERFILE, test="", instruction="", services=()) -> Path:
    """A task that is done when `<name>.txt` says `<name>`."""
    test = test or f'assert open("/home/agent/{name}.txt").read().strip() == "{name}"'
    task = Task(
        config=TaskConfig.model_validate(
            {
                "environment": {"network_mode": "no-network"},
                "metadata": {"termloom": {"inventory": ["test_it"], "services": list(services)}},
            }
        ),
        instruction=instruction or f"Write {name} into {name}.txt.\n",
        files=(
            File(path="environment/Dockerfile", data=dockerfile.encode()),
            File(path="tests/test.sh", data=b"#!/bin/bash\nexit 1\n", mode=0o755),
            File(path="tests/test_outputs.py", data=f"def test_it():\n    {test}\n".encode()),
        ),
    )
    write_task(task, root / name)
    return root / name


def make_model(directory: Path, *, hidden=32, layers=1, seed=0) -> Path:
    """A model directory with random weights and a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(MARKERS)
    save_model(
        small_llama(len(alphabet) + len(MARKERS), hidden=hidden, layers=layers, context=4096, seed=seed), directory
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def limits() -> Limits:
    return Limits(LimitSettings().sizes())


@asynccontextmanager
async def open_world(state: Path):
    """The engine and an arena on it."""
    async with open_engine("namespace", cache=PathSettings().cache, state=state, progress=lambda _: None) as engine:
        yield engine, Arena(engine, limits(), run_id="test")
