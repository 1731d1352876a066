"""Demonstrations of the basics, as trajectories: what a policy that starts from nothing first learns from.

Invariants:
- A demonstration reads to the letter like an episode of the agent loop on the same task: opening, answers,
  observations.
- Nothing is run: only families whose commands print nothing and end with exit code 0 are demonstrated, and their
  observations follow from that. So thousands cost a second.
- A demonstrator that slips plays one of the step's typical mistakes, does not notice, and goes on. It is meant to be
  imitated: it leaves a policy that tries several programs with the right names, which is what reinforcement can sort.
- What a seed gives depends on the arguments alone. A task that is to be measured on is never shown.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from generators.messages import Mistake
from generators.procedural.compose import ProceduralTask, compose
from generators.procedural.library import BASICS
from generators.taxonomy import load_taxonomy
from runtime.agent.kind import Opening
from runtime.agent.minimal import open_conversation
from runtime.agent.observation import observe
from runtime.agent.settings import AgentSettings
from runtime.errors import UserError
from runtime.trajectory import Trajectory, Turn, encode
from sandbox.spec import CommandResult, FailureClass

AGENT = AgentSettings(prompt="terse")


def write_demonstrations(
    out: Path,
    *,
    count: int,
    seed: int,
    slips: float,
    levels: Collection[int],
    families: Collection[str] = (),
    without: Collection[Path] = (),
) -> tuple[int, int]:
    """Write the demonstrations of `count` draws, one a line, but of no task whose instruction is that of a task in the
    folders `without`.

    Returns: how many were written, and how many mistakes are in them. Raises: UserError.
    """
    hidden = {path.read_text("utf-8") for folder in without for path in folder.glob("*/instruction.md")}
    written = mistakes = 0
    with out.open("wb") as file:
        for trajectory in demonstrations(count=count, seed=seed, slips=slips, levels=levels, families=families):
            if trajectory.opening[-1].content in hidden:
                continue
            file.write(encode(trajectory) + b"\n")
            written += 1
            mistakes += sum(turn.intent == "error" for turn in trajectory.turns)
    return written, mistakes


def demonstrations(
    *, count: int, seed: int, slips: float, levels: Collection[int], families: Collection[str] = ()
) -> Iterator[Trajectory]:
    """Demonstrations of terse tasks at these levels. `slips` is the probability of a mistake at each step.

    Raises: UserError for a family that is no basic one.
    """
    names = _names(families)
    categories = sorted({family.category for family in BASICS if family.name in names})
    for index in range(count):
        blueprint = load_taxonomy().draw(
            seed, index, categories=categories, levels=levels, style="terse", families=names
        )
        rng = random.Random(f"{blueprint.seed}/demonstrate")
        yield _demonstrate(compose(blueprint), rng, slips, f"demonstration-{seed}-{index:05d}")


def _names(families: Collection[str]) -> tuple[str, ...]:
    basics = [family.name for family in BASICS]
    if unknown := sorted(set(families) - set(basics)):
        raise UserError("--family", f"{unknown[0]!r} cannot be demonstrated", f"There are {', '.join(basics)}")
    return tuple(name for name in basics if not families or name in families)


def demonstration(name: str, agent: AgentSettings, opening: Opening, turns: Sequence[Turn]) -> Trajectory:
    """These turns and the one that says that all is done, as an episode reads."""
    done = Turn(index=len(turns) + 1, text="<action>done</action>", action="done")
    return Trajectory(
        trajectory_id=name,
        run_id="demonstrate",
        task=name,
        source="synthesis",
        model="procedural",
        prompt_version=opening.prompt_version,
        settings=agent.model_dump(mode="json"),
        opening=opening.messages,
        turns=(*turns, done),
        failure=FailureClass.OK,
    )


def _demonstrate(task: ProceduralTask, rng: random.Random, slips: float, name: str) -> Trajectory:
    opening = open_conversation(task.draft.instruction.rstrip("\n") + "\n", AGENT)
    commands = [_command(task, step, rng, slips) for step in range(len(task.reference.commands))]
    turns = [_turn(number, command, mistake) for number, (command, mistake) in enumerate(commands, 1)]
    return demonstration(name, AGENT, opening, turns)


def _command(task: ProceduralTask, step: int, rng: random.Random, slips: float) -> tuple[str, Mistake | None]:
    mistakes = [mistake for mistake in task.mistakes if mistake.step == step]
    if rng.random() >= slips:
        return task.reference.commands[step], None
    mistake = rng.choice(mistakes)
    return mistake.command, mistake


def _turn(number: int, command: str, mistake: Mistake | None) -> Turn:
    shown = observe(
        CommandResult(output="", exit_code=0), max_tokens=AGENT.observation_tokens, count_tokens=len, timeout_s=1.0
    )
    return Turn(
        index=number,
        text=f"<command>{command}</command>",
        action="command",
        command=command,
        observation=shown,
        exit_code=0,
        intent="error" if mistake else "correct",
        error_type=mistake.error_type if mistake else "",
    )
