"""The procedural players: the way, the mistakes on it, and back to the way."""

from __future__ import annotations

import pytest

from generators.messages import Mistake
from generators.synthesis.procedural import (
    ProceduralCritic,
    ProceduralGenerator,
    ProceduralMistakeMaker,
    moves_ahead,
)
from generators.synthesis.roles import Scene, Step
from generators.synthesis.script import Move, Script
from runtime.trajectory import Turn
from tests.generators.synthesis.parts import turn

DROP = Mistake(error_type="analysis_error", command="drop", step=1, reason="It is in the way.", repair=("undo", "tidy"))
SCRIPT = Script(
    moves=(
        Move(command="one", thought="First.", step=0),
        Move(command="two", thought="Second.", step=1),
        Move(command="three", thought="Third.", step=2),
    ),
    mistakes=(DROP,),
)
DROPPED = turn(2, "drop", intent="error", error_type="analysis_error")


def scene(*turns: Turn, tried: tuple[str, ...] = (), key: str = "item/1/0") -> Scene:
    return Scene(instruction="do it", turns=turns, tried=tried, key=key)


def ahead(*turns: Turn) -> list[str]:
    return [move.command for move in moves_ahead(SCRIPT, turns)]


def test_a_mistake_is_repaired_and_its_step_done_before_the_rest() -> None:
    assert ahead(turn(1, "one")) == ["two", "three"]
    assert ahead(turn(1, "one"), DROPPED) == ["undo", "tidy", "two", "three"]
    assert ahead(turn(1, "one"), DROPPED, turn(3, "undo")) == ["tidy", "two", "three"]


def test_a_mistake_in_a_repair_puts_the_repair_first() -> None:
    misspelt = turn(3, "unod", intent="error", error_type="command_error", exit_code=127)
    assert ahead(turn(1, "one"), DROPPED, misspelt) == ["undo", "tidy", "two", "three"]


async def test_after_a_mistake_the_thought_says_what_is_to_be_seen() -> None:
    failed = turn(2, "drop", intent="error", error_type="analysis_error", exit_code=3)
    stopped = turn(2, "drop", intent="error", error_type="analysis_error", exit_code=None)
    generator = ProceduralGenerator(SCRIPT)
    thoughts = [
        (await generator.step(scene(turn(1, "one"), last), drafts=())).thought for last in (failed, stopped, DROPPED)
    ]
    assert "exit code 3" in thoughts[0].lower()
    assert "stopped" in thoughts[1] or "time limit" in thoughts[1]
    assert "exit code" not in thoughts[2]
    assert (await generator.step(scene(turn(1, "one"), turn(2, "two")), drafts=())).thought == "Third."


async def test_at_the_end_of_the_way_it_is_done() -> None:
    turns = [turn(1, "one"), turn(2, "two"), turn(3, "three")]
    step = await ProceduralGenerator(SCRIPT).step(scene(*turns), drafts=())
    assert (step.done, step.command) == (True, "")
    assert ProceduralMistakeMaker(SCRIPT).possible(scene(*turns)) == []


async def test_the_tasks_own_mistake_comes_before_a_slip_of_its_type() -> None:
    maker, here = ProceduralMistakeMaker(SCRIPT), scene(turn(1, "one"))
    assert maker.possible(here) == ["analysis_error", "command_error", "hallucination"]
    step = await maker.mistake(here, "analysis_error", drafts=())
    assert step == Step(thought="It is in the way.", command="drop")


@pytest.mark.parametrize("here", [scene(turn(1, "one"), tried=("drop",)), scene(turn(1, "one"), DROPPED)])
def test_nothing_is_got_wrong_twice_in_the_same_way(here: Scene) -> None:
    assert "analysis_error" not in ProceduralMistakeMaker(SCRIPT).possible(here)


async def test_the_critic_sends_the_right_step_back_as_a_mistake() -> None:
    critic, here = ProceduralCritic(SCRIPT), scene(turn(1, "one"))
    right, wrong = Step(thought="", command="two"), Step(thought="", command="drop")
    assert not (await critic.judge(here, right, "analysis_error", draft=0)).accepted
    assert (await critic.judge(here, wrong, "analysis_error", draft=0)).accepted
    assert (await critic.judge(here, right, None, draft=0)).accepted
