"""A model that is played: it answers the prompts of every chat role as a model would, from the task families.

    ScriptedServer(PlayedModel())

So the whole chat pipeline, its prompts and parsers included, makes tasks that really certify, without a model. A double
for tests, benches and trying things out; beside the prompts it knows nothing but what it wrote itself. Some of its
tasks are bad on purpose: the reviewer refuses a share of them for good, the judge another.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generators.messages import Blueprint, Environment
from generators.procedural.compose import ProceduralTask, compose
from generators.procedural.library import FAMILIES
from generators.procedural.players import cheating_commands, with_mistake
from generators.taxonomy import derive_seed, load_taxonomy
from runtime.chat.script import Fault, Reply, Said
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import File

_OPENINGS = {
    "You write tasks": "draft",
    "You decide whether": "review",
    "Prepare the surroundings": "furnish",
    "Write the final tests": "examine",
    "Hold these tests": "judge",
    "This is an audit": "cheat",
}
_CELL = re.compile(r"^- category: (.+)\n(?:- .+\n)*", re.MULTILINE)
_COMMAND = re.compile(r"<command>(.*)</command>", re.DOTALL)
_Messages = Sequence[Mapping[str, Any]]
_CHEATS = 4
"""Commands of a cheater at most."""


@dataclass(frozen=True)
class _Written:
    """A task that this model wrote."""

    blueprint: Blueprint
    task: ProceduralTask
    cell: str
    """What it was asked for: the same in every round."""

    def is_bad(self, role: str, share: float) -> bool:
        return random.Random(f"{self.cell}/{role}").random() < share


class PlayedModel:
    """A script for `ScriptedServer`.

    Answers depend on the prompt alone, but for a solver's mistakes, which are drawn for each call on its own.
    """

    def __init__(self, *, levels: Sequence[int] = (1, 2, 3), bad: float = 0.05, slip_rate: float = 0.3) -> None:
        self._levels, self._bad, self._slip_rate = tuple(levels), bad, slip_rate
        self._written: dict[str, _Written] = {}
        """By instruction."""
        self._roles: dict[str, Callable[[_Written, str, _Messages, int], Said]] = {
            "review": lambda written, *_: _json(self._review(written)),
            "furnish": lambda written, *_: _json(_environment(written.task.environment)),
            "examine": lambda written, *_: _json({"final_tests": written.task.final_tests}),
            "judge": lambda written, *_: _json(self._judge(written)),
            "cheat": lambda written, prompt, messages, _: _turn(
                cheating_commands(written.blueprint.seed, prompt)[:_CHEATS], messages
            ),
            "solve": lambda written, _, messages, number: _turn(self._plan(written, messages, number), messages),
        }

    def __call__(self, request: dict[str, Any], number: int) -> Said:
        messages = request["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        role = next((role for opening, role in _OPENINGS.items() if prompt.startswith(opening)), "solve")
        if role == "draft":
            return _json(self._draft(prompt))
        written = next((w for text, w in self._written.items() if text in prompt), None)
        if written is None:
            return Fault(status=400, message="this model wrote no such task")
        return self._roles[role](written, prompt, messages, number)

    def _draft(self, prompt: str) -> Mapping[str, Any]:
        written = self._write(prompt)
        draft = written.task.draft
        self._written[draft.instruction.strip()] = written
        return {
            "title": draft.title,
            "instruction": draft.instruction.strip(),
            "truth_notes": draft.truth.notes,
            "truth_strings": draft.truth.strings,
            "difficulty": draft.difficulty,
            "tags": draft.tags,
        }

    def _write(self, prompt: str) -> _Written:
        """Another prompt, another task: of the category asked for, where there is a family for it."""
        cell = _CELL.search(prompt)
        wanted = cell[1] if cell else ""
        seed = derive_seed(0, prompt)
        known = {family.category for family in FAMILIES}
        blueprint = load_taxonomy().draw(
            seed, 0, categories=[wanted] if wanted in known else sorted(known), levels=self._levels
        )
        return _Written(blueprint, compose(blueprint), cell[0] if cell else "")

    def _review(self, written: _Written) -> Mapping[str, Any]:
        score: dict[str, Any] = {
            "environment_complexity": 5,
            "data_generatability": 5,
            "verification_determinism": 5,
            "critique": "",
        }
        if written.is_bad("review", self._bad):
            score |= {"verification_determinism": 2, "critique": "It cannot be told whether it was done."}
        return score

    def _judge(self, written: _Written) -> Mapping[str, Any]:
        unstated = ["the colour of the file"] if written.is_bad("judge", self._bad) else []
        return {"unstated": unstated, "untested": []}

    def _plan(self, written: _Written, messages: _Messages, number: int) -> Sequence[str]:
        """The reference, with a mistake in place of the next step now and then."""
        task, step = written.task, len(_typed(messages))
        slips = [mistake for mistake in task.mistakes if mistake.step == step]
        rng = random.Random(f"{written.blueprint.seed}/{number}")
        if slips and rng.random() < self._slip_rate / len(task.reference.commands):
            return with_mistake(task.reference, rng.choice(slips))
        return task.reference.commands


def _typed(messages: _Messages) -> list[str]:
    """The commands of a conversation so far."""
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    return [found[1] for answer in answers if (found := _COMMAND.search(answer))]


def _turn(plan: Sequence[str], messages: _Messages) -> Reply:
    done = len(_typed(messages))
    if done >= len(plan):
        return Reply(text="<think>Everything asked for is there.</think>\n<action>done</action>")
    return Reply(text=f"<think>Step {done + 1}.</think>\n<command>{plan[done]}</command>")


def _environment(environment: Environment) -> Mapping[str, Any]:
    return {
        "dockerfile": environment.dockerfile.removeprefix(BASE_DOCKERFILE),
        "files": [_file(file) for file in environment.files],
        "initial_tests": environment.initial_tests,
    }


def _file(file: File) -> Mapping[str, Any]:
    return {
        "path": file.path,
        "content": base64.b64encode(file.data).decode(),
        "encoding": "base64",
        "executable": bool(file.mode & 0o100),
    }


def _json(answer: Mapping[str, Any]) -> Reply:
    return Reply(text=json.dumps(answer, ensure_ascii=False))
