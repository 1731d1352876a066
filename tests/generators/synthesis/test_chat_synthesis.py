"""The protocol with chat players on a scripted endpoint: drafts sent back, mistakes discarded, real recoveries."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest

from generators.messages import ErrorType
from generators.synthesis.intents import draw_error
from generators.synthesis.run import Outcome
from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from runtime.settings import SynthesizeSettings
from runtime.trajectory import CriticVerdict, Trajectory, decode
from tests.generators.running import namespace_engine, settings_for
from tests.generators.synthesis.parts import count_task, synthesize, write_tasks

pytestmark = pytest.mark.namespace

RATE = 0.5
OPENINGS = {
    "You write one turn of a record of skilled": "step",
    "You write one turn of a record of terminal work": "mistake",
    "You check one turn": "critic",
}
YES = {"accepted": True, "critique": ""}


def step(command: str, thought: str = "It counts lines.", **fields: Any) -> dict[str, Any]:
    return {"thought": thought, "command": command, **fields}


RIGHT, DONE = step("wc -l < ~/rows.txt > ~/count.txt"), step("", "It holds 7.", done=True)
WRONG = step("echo 8 > ~/count.txt", "I counted eight.")


class Endpoint:
    """Answers each role from its own list, the last entry for ever."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = {"step": [RIGHT, DONE], "mistake": [WRONG], "critic": [YES]} | answers
        self.prompts: dict[str, list[str]] = defaultdict(list)

    def __call__(self, request: dict[str, Any], _number: int) -> Reply:
        prompt = request["messages"][0]["content"]
        role = next(role for opening, role in OPENINGS.items() if prompt.startswith(opening))
        answers = self._answers[role]
        answer = answers[min(len(self.prompts[role]), len(answers) - 1)]
        self.prompts[role].append(prompt)
        return Reply(text=answer if isinstance(answer, str) else f"<think>An error is due.</think>{json.dumps(answer)}")


def seed_for(*intents: str) -> int:
    """A seed whose draws are these: `e` a mistake, `c` a correct step; `ee/c` the first turn drawn three times."""

    def drawn(seed: int, turn: int, draw: int) -> str:
        weights = SynthesizeSettings().error_weights.model_dump()
        key = f"count-s{seed}-00/{turn}/{draw}"
        return "e" if draw_error(key, rate=RATE, weights=weights, possible=get_args(ErrorType)) else "c"

    def fits(seed: int) -> bool:
        return all(
            drawn(seed, turn, draw) == intent
            for turn, draws in enumerate(intents, start=1)
            for draw, intent in enumerate(draws)
        )

    return next(filter(fits, itertools.count()))


async def run(endpoint: Endpoint, tmp_path: Path, seed: int) -> tuple[Outcome, list[Trajectory]]:
    tasks = write_tasks(tmp_path / "tasks", count=count_task(solution=None))
    async with ScriptedServer(endpoint) as server, namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(
            tmp_path,
            "synthesize.author=chat",
            f"synthesize.error_rate={RATE}",
            f"synthesize.seed={seed}",
            f"chat.base_url={server.base_url}",
            "chat.model=scripted",
        )
        outcome = await synthesize(settings, tasks, tmp_path / "out", engine)
    lines = (tmp_path / "out" / "trajectories.jsonl").read_bytes().splitlines() if outcome.statistics.turns else []
    return outcome, [decode(line) for line in lines]


async def test_a_mistake_really_happens_and_is_repaired_from_what_it_left(tmp_path: Path) -> None:
    endpoint = Endpoint(
        mistake=[step("echo 7 > ~/count.txt"), WRONG],
        critic=[{"accepted": False, "critique": "That is right."}, YES],
    )
    outcome, (made,) = await run(endpoint, tmp_path, seed_for("e", "c", "c"))
    first, second, last = made.turns
    assert (first.command, first.thought, first.intent) == (WRONG["command"], WRONG["thought"], "error")
    assert (first.effect, first.loss_weight) == ("files", 0.0)
    assert first.critic == (
        CriticVerdict(accepted=False, critique="That is right.", rejected_command="echo 7 > ~/count.txt"),
        CriticVerdict(accepted=True),
    )
    assert (second.command, second.intent, second.loss_weight) == (RIGHT["command"], "correct", 1.0)
    assert last.action == "done"
    assert made.verdict is not None
    assert made.verdict.passed
    assert made.model == "chat:scripted"
    assert outcome.statistics.critic_rejections == 1
    assert "That is right." in endpoint.prompts["mistake"][1]
    assert "The last command was wrong" in endpoint.prompts["step"][0]
    assert WRONG["command"] in endpoint.prompts["step"][0]
    assert "The last command was wrong" not in endpoint.prompts["step"][1]


async def test_nothing_that_was_said_shows_what_was_planned(tmp_path: Path) -> None:
    _, (made,) = await run(Endpoint(), tmp_path, seed_for("e", "c", "c"))
    assert "An error is due" not in "".join(turn.text for turn in made.turns)


async def test_a_mistake_that_leaves_no_trace_is_drawn_again(tmp_path: Path) -> None:
    endpoint = Endpoint(mistake=[step("true"), WRONG])
    outcome, (made,) = await run(endpoint, tmp_path, seed_for("ee", "c", "c"))
    assert [(turn.intent, turn.discarded) for turn in made.turns] == [("error", 1), ("correct", 0), ("correct", 0)]
    assert outcome.statistics.discarded == 1
    assert "This was tried and left no trace: true" in endpoint.prompts["mistake"][1]


async def test_a_mistake_that_is_never_accepted_does_not_happen(tmp_path: Path) -> None:
    no = {"accepted": False, "critique": "Not plausible."}
    endpoint = Endpoint(critic=[no, no, no, YES])
    outcome, (made,) = await run(endpoint, tmp_path, seed_for("ec", "c"))
    assert [(turn.intent, turn.discarded) for turn in made.turns] == [("correct", 1), ("correct", 0)]
    assert (len(endpoint.prompts["mistake"]), outcome.statistics.discarded) == (3, 1)


async def test_a_correct_step_that_is_never_accepted_runs_as_last_drafted(tmp_path: Path) -> None:
    no = {"accepted": False, "critique": "Look first."}
    endpoint = Endpoint(step=[step("false"), step("false"), RIGHT, DONE], critic=[no, no, no, YES])
    _, (made,) = await run(endpoint, tmp_path, seed_for("c", "c"))
    assert made.turns[0].command == RIGHT["command"]
    assert [verdict.accepted for verdict in made.turns[0].critic] == [False, False, False]
    assert "Look first." in endpoint.prompts["step"][2]


@pytest.mark.parametrize(
    "first",
    [step("ls", "I think </think> so."), step("echo '</command>'")],
    ids=["a tag in the thought", "a tag in the command"],
)
async def test_what_cannot_be_said_in_the_agents_format_is_sent_back(tmp_path: Path, first: dict[str, Any]) -> None:
    endpoint = Endpoint(step=[first, RIGHT, DONE])
    _, (made,) = await run(endpoint, tmp_path, seed_for("c", "c"))
    assert made.turns[0].command == RIGHT["command"]
    assert [verdict.accepted for verdict in made.turns[0].critic] == [False, True]


async def test_a_player_that_babbles_costs_its_trajectory_and_nothing_else(tmp_path: Path) -> None:
    outcome, made = await run(Endpoint(critic=["Well."]), tmp_path, seed_for("c"))
    assert (outcome.rejected, made) == ({"answer_unusable": 1}, [])
