"""Small, complete parts of tasks for tests that need no sandbox."""

from __future__ import annotations

import random

from generators.messages import (
    Attempt,
    Certified,
    Draft,
    Environment,
    Examined,
    Reference,
    Solved,
    Truth,
)
from generators.taxonomy import load_taxonomy
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import File

RUN = "run"


def make_solved(seed: int = 0, index: int = 0, *, words: int = 60, like: int | None = None) -> Solved:
    """A solved item; `like` takes its texts from another index."""
    rng = random.Random(index if like is None else like)
    text = " ".join(f"w{rng.randrange(10_000)}" for _ in range(words))
    blueprint = load_taxonomy().draw(seed, index)
    examined = Examined(
        item=f"{seed}-{index:05d}",
        run_id=RUN,
        blueprint=blueprint,
        draft=Draft(
            title="Sum the rows!",
            instruction=f"Please {text}.",
            truth=Truth(strings=("secret-answer",)),
            category="data processing",
            difficulty="easy",
            tags=("awk",),
            level=1,
        ),
        environment=Environment(
            dockerfile=BASE_DOCKERFILE + "WORKDIR /home/agent\n",
            files=(File(path="files/rows.txt", data=text.encode(), mode=0o640),),
            initial_tests="def test_rows() -> None:\n    assert True\n",
        ),
        final_tests="def test_sum() -> None:\n    assert False\n",
        inventory=("test_sum",),
        failing=("test_sum",),
    )
    reference = Reference(commands=(f"echo {text}",))
    attempts = (
        Attempt(index=0, reward=1.0, failure="ok", commands=reference.commands, turns=1),
        Attempt(index=1, reward=0.0, failure="agent_fail", commands=("true",), turns=1),
        Attempt(index=2, reward=None, failure="sandbox_lost", commands=(), turns=0),
    )
    return Solved(item=examined.item, run_id=RUN, examined=examined, attempts=attempts, reference=reference)


def make_certified(seed: int = 0, index: int = 0, *, like: int | None = None) -> Certified:
    solved = make_solved(seed, index, like=like)
    return Certified(item=solved.item, run_id=RUN, solved=solved, certificate=b"{}\n")
