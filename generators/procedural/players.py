"""The procedural cast: players that need no model, because the task is known by construction.

Each player composes the task from its blueprint, which costs nothing and gives the same task every time; so the players
share no state. The solver knows the reference and slips now and then, which gives pass rates and recoveries something to
measure; the cheater sees what an agent sees and nothing else.
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Sequence

import anyio

from generators.messages import Blueprint, Draft, Environment, Mistake, Reference
from generators.procedural.compose import CONTEXT_DIR, compose
from generators.roles import Cast, Judgement, Played, Review
from sandbox.engine import Sandbox
from sandbox.spec import AGENT_HOME

COMMAND_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 10.0
_PATH = re.compile(rf"{AGENT_HOME}/[\w./+-]*[\w+-]")
_PATH_LITERAL = re.compile(rf"'({AGENT_HOME}/[^'\n]*)'")


class ProceduralDrafter:
    async def draft(self, blueprint: Blueprint, *, feedback: Sequence[str] = ()) -> Draft:
        return compose(blueprint).draft


class ProceduralReviewer:
    async def review(self, blueprint: Blueprint, draft: Draft) -> Review:
        return Review(
            environment_complexity=5,
            data_generatability=5,
            verification_determinism=5,
            critique="Drawn from a task family: its files are written by the draw, its tests compare with literals computed there.",
        )


class ProceduralFurnisher:
    async def furnish(self, blueprint: Blueprint, draft: Draft, *, feedback: Sequence[str] = ()) -> Environment:
        return compose(blueprint).environment


class ProceduralExaminer:
    async def examine(
        self, blueprint: Blueprint, draft: Draft, environment: Environment, *, feedback: Sequence[str] = ()
    ) -> str:
        return compose(blueprint).final_tests


class ProceduralJudge:
    """Every absolute path in a test must be named in the instruction or in a prepared file, or lie in the environment."""

    async def judge(self, draft: Draft, environment: Environment, final_tests: str) -> Judgement:
        return Judgement(unstated=unstated_paths(draft.instruction, environment, final_tests))


def unstated_paths(instruction: str, environment: Environment, tests: str) -> tuple[str, ...]:
    """Paths that the tests look at and an agent can hear of nowhere."""
    stated = set(_PATH.findall(instruction))
    stated |= {file.path.replace(CONTEXT_DIR, AGENT_HOME, 1) for file in environment.files}
    for file in environment.files:
        stated |= set(_PATH.findall(file.data.decode(errors="replace")))
    stated |= {parent for path in stated for parent in _parents(path)}
    return tuple(sorted(set(_PATH_LITERAL.findall(tests)) - stated))


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


class ProceduralSolver:
    """Plays the reference in a persistent session. `slip_rate` is the probability that an attempt makes one of the task's
    typical mistakes and does not notice."""

    def __init__(self, *, slip_rate: float = 0.3) -> None:
        self._slip_rate = slip_rate

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played:
        return await _play(self.plan(blueprint, attempt), sandbox)

    def reference(self, blueprint: Blueprint) -> Reference:
        return compose(blueprint).reference

    def plan(self, blueprint: Blueprint, attempt: int) -> tuple[str, ...]:
        """The commands of this attempt: a function of item and attempt alone."""
        task = compose(blueprint)
        rng = random.Random(f"{blueprint.seed}/solve/{attempt}")
        if rng.random() >= self._slip_rate or not task.mistakes:
            return task.reference.commands
        return with_mistake(task.reference, rng.choice(task.mistakes))


def with_mistake(reference: Reference, mistake: Mistake) -> tuple[str, ...]:
    """The reference with a mistake in place of the right step, unnoticed."""
    commands = reference.commands
    return (*commands[: mistake.step], mistake.command, *commands[mistake.step + 1 :])


class ProceduralCheater:
    """Tries one of the cheap ways to a reward; which one is a function of the item."""

    async def cheat(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox) -> Played:
        return await _play(cheating_commands(blueprint.seed, draft.instruction), sandbox)


def cheating_commands(seed: int, instruction: str) -> tuple[str, ...]:
    """What the cheater of an item types, knowing its instruction alone."""
    way = random.Random(f"{seed}/cheat").choice(sorted(CHEATS))
    return CHEATS[way](instruction)


def _nothing(instruction: str) -> tuple[str, ...]:
    return ()


def _touch(instruction: str) -> tuple[str, ...]:
    return _for_missing(instruction, "touch")


def _claim(instruction: str) -> tuple[str, ...]:
    return _for_missing(instruction, "echo done >")


def _copy_inputs(instruction: str) -> tuple[str, ...]:
    inputs = "input=$(find /home/agent -type f -printf '%s %p\\n' | sort -nr | head -n 1 | cut -d' ' -f2-)"
    return (inputs, *_for_missing(instruction, 'cp "$input"'))


def _echo_instruction(instruction: str) -> tuple[str, ...]:
    return _for_missing(instruction, f"printf %s {shlex.quote(instruction)} >")


def _open_up(instruction: str) -> tuple[str, ...]:
    return ("chmod -R 777 /home/agent/*", "find /home/agent -type f -exec touch {} +")


def _plant_configuration(instruction: str) -> tuple[str, ...]:
    hook = "import pytest\n\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n"
    return tuple(f"printf %s {shlex.quote(hook)} > {place}/conftest.py" for place in (AGENT_HOME, "/tmp"))


def _equal_to_everything(instruction: str) -> tuple[str, ...]:
    """For tests that import what the agent wrote: whatever they ask of it compares as they wish."""
    module = "class _Any:\n    __eq__ = __ge__ = __le__ = __contains__ = lambda self, other: True\n    __call__ = lambda self, *args, **names: self\n    __getattr__ = lambda self, name: self\n\n\ndef __getattr__(name):\n    return _Any()\n"
    return _for_missing(instruction, f"printf %s {shlex.quote(module)} >")


CHEATS = {
    "claim": _claim,
    "copy inputs": _copy_inputs,
    "echo instruction": _echo_instruction,
    "equal to everything": _equal_to_everything,
    "nothing": _nothing,
    "open up": _open_up,
    "plant configuration": _plant_configuration,
    "touch": _touch,
}
"""Ways to cheat that need no understanding of the task: from the instruction to commands."""


def _for_missing(instruction: str, action: str) -> tuple[str, ...]:
    """The action on every path that the instruction names and that is not there yet."""
    paths = [shlex.quote(path) for path in dict.fromkeys(_PATH.findall(instruction))]
    return tuple(
        f"[ -e {path} ] || {{ mkdir -p {shlex.quote(path.rsplit('/', 1)[0])}; {action} {path}; }}" for path in paths
    )


async def _play(commands: Sequence[str], sandbox: Sandbox) -> Played:
    session = await sandbox.open_session()
    try:
        for command in commands:
            await session.run(command, timeout_s=COMMAND_TIMEOUT_S)
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await session.aclose()
    return Played(commands=tuple(commands), turns=len(commands))


def procedural_cast(*, slip_rate: float = 0.3) -> Cast:
    """A full cast of procedural players."""
    return Cast(
        drafter=ProceduralDrafter(),
        reviewer=ProceduralReviewer(),
        furnisher=ProceduralFurnisher(),
        examiner=ProceduralExaminer(),
        judge=ProceduralJudge(),
        solver=ProceduralSolver(slip_rate=slip_rate),
        cheater=ProceduralCheater(),
    )
