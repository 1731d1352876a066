"""Errands whose first command fails by design, and demonstrations of them: clean, and with a planted mistake.

An errand is a basic job with its result in a folder. Its instruction does not say how things stand there:

    clear     the folder is there, the job's command does it
    missing   the folder is not there: the command fails, a new folder is what helps
    locked    the folder cannot be written to: the command fails, a change of its mode is what helps

Whoever demonstrates a clean run knows, and does what helps first. A planted mistake is what somebody does who does not
know; what it prints is shown, and what follows is the repair.

Invariants:
- Instruction, job and folder of an errand are drawn before its obstacle: nothing said tells them apart.
- Nothing is run: what a planted mistake prints is known by construction, and held against a sandbox by the tests.
- Clean and injected demonstrations of a seed are of the same errands, in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from generators.demonstrate import demonstration
from generators.procedural.compose import module_of
from generators.procedural.families.basics import NAMES, TERSE_PLACES, Scene
from generators.procedural.families.basics_files import COPY, MOVE
from generators.procedural.families.basics_text import SORT
from generators.procedural.steps import Step
from runtime.agent.minimal import open_conversation
from runtime.agent.observation import observe
from runtime.agent.settings import AgentSettings
from runtime.task import FINAL_TESTS, Task, TaskConfig
from runtime.trajectory import Trajectory, Turn
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import AGENT_HOME, CommandResult, File

Obstacle = Literal["clear", "missing", "locked"]

AGENT = AgentSettings(
    prompt="terse", max_turns=6, max_tokens_per_turn=48, context_tokens=480, min_answer_tokens=8, observation_tokens=64
)
_MIX: tuple[tuple[Obstacle, int], ...] = (("clear", 3), ("missing", 1), ("locked", 1))
"""Mostly the job's own command is right: so it is what a policy tries first."""
_FOLDERS = ("in", "new", "out")
"""Few, as the places are: so a small vocabulary holds each folder of each place whole."""
_JOBS = (COPY, MOVE, SORT)
_DENIED = {"missing": "No such file or directory", "locked": "Permission denied"}
_REFUSALS = {
    "cp": "cp: cannot create regular file '{target}': {reason}",
    "mv": "mv: cannot move '{source}' to '{target}': {reason}",
    "sort": "bash: {target}: {reason}",
}
_TEST_SH = b"""#!/bin/bash
# Without its metadata: the image's own python3 and pytest.
mkdir -p /logs/verifier
python3 -m pytest -q /tests/test_outputs.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


@dataclass(kw_only=True)
class _Foldered(Scene):
    """A scene whose results go into a folder; its inputs lie beside the folder."""

    folder: str = ""
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def file(self, lines: list[str] | None = None) -> str:
        path = f"{self.directory}/{self.name()}.txt"
        self.files[path] = "".join(f"{line}\n" for line in lines or self.lines())
        self.sources.append(path)
        return path

    def path(self) -> str:
        self.folder = self.folder or f"{self.directory}/{self.rng.choice(_FOLDERS)}"
        path = f"{self.folder}/{self.name()}.txt"
        self.targets.append(path)
        return path


@dataclass(frozen=True, kw_only=True)
class Errand:
    """One task, and the ways to do it."""

    instruction: str
    obstacle: Obstacle
    folder: str
    files: tuple[File, ...]
    job: str
    """The command that the instruction suggests."""
    refusal: str
    """What the job's command prints when it fails: nothing where nothing is in the way."""
    checks: tuple[str, ...]

    @property
    def way(self) -> tuple[str, ...]:
        """The commands of someone who knows what is in the way."""
        helps = {"clear": (), "missing": (f"mkdir {self.folder}",), "locked": (f"chmod u+w {self.folder}",)}
        return (*helps[self.obstacle], self.job)

    @property
    def setup(self) -> str:
        """One shell command that makes the folder what it is."""
        makes = {"clear": "mkdir {0}", "missing": "true", "locked": "mkdir {0} && chmod 555 {0}"}
        return makes[self.obstacle].format(self.folder)

    @property
    def mistake(self) -> tuple[str, str]:
        """What someone does who does not know, and what it prints."""
        if self.obstacle == "clear":
            return f"mkdir {self.folder}", f"mkdir: cannot create directory \u2018{self.folder}\u2019: File exists\n"
        return self.job, self.refusal


def draw_errand(seed: str, obstacle: Obstacle | None = None) -> Errand:
    """The errand of a seed; without `obstacle` one of the usual mix."""
    rng = random.Random(seed)
    scene = _Foldered(rng=rng, directory=rng.choice(TERSE_PLACES), _names=rng.sample(NAMES[:10], 10))
    step = rng.choice(_JOBS).job(scene)
    names, weights = zip(*_MIX, strict=True)
    obstacle = obstacle or rng.choices(names, weights)[0]
    return Errand(
        instruction=f"{step.says[-1]}\n",
        obstacle=obstacle,
        folder=scene.folder,
        files=tuple(File(path=path, data=text.encode(), owner="agent") for path, text in scene.files.items()),
        job=step.command,
        refusal=_refusal(step, scene, obstacle),
        checks=step.checks,
    )


def _refusal(step: Step, scene: _Foldered, obstacle: Obstacle) -> str:
    if obstacle == "clear":
        return ""
    form = _REFUSALS[step.command.split()[0]]
    return form.format(source=scene.sources[0], target=scene.targets[0], reason=_DENIED[obstacle]) + "\n"


def errand_task(errand: Errand) -> Task:
    """As a task directory."""
    home = [f"COPY --chown=agent:agent files/ {AGENT_HOME}/", "USER agent", f"RUN {errand.setup}"]
    tests = module_of(errand.checks)
    inventory = [line[4:].partition("(")[0] for line in tests.splitlines() if line.startswith("def test_")]
    return Task(
        config=TaskConfig.model_validate(
            {"environment": {"network_mode": "no-network"}, "metadata": {"termloom": {"inventory": inventory}}}
        ),
        instruction=errand.instruction,
        files=(
            File(path="environment/Dockerfile", data=f"{BASE_DOCKERFILE}{chr(10).join(home)}\n".encode()),
            *(File(path=f"environment/files/{f.path[len(AGENT_HOME) + 1 :]}", data=f.data) for f in errand.files),
            File(path="tests/test.sh", data=_TEST_SH, mode=0o755),
            File(path=FINAL_TESTS, data=tests.encode()),
        ),
    )


def errand_demonstrations(
    *, count: int, seed: int, injected: float, mistake_weight: float = 0.0
) -> Iterator[Trajectory]:
    """`count` errands done; each with a planted mistake at its beginning with probability `injected`."""
    for index in range(count):
        name = f"errand-{seed}-{index:05d}"
        errand = draw_errand(name)
        planted = random.Random(f"{name}/planted").random() < injected
        yield _demonstrate(errand, name, planted, mistake_weight)


def _demonstrate(errand: Errand, name: str, planted: bool, mistake_weight: float) -> Trajectory:
    opening = open_conversation(errand.instruction, AGENT)
    turns: list[Turn] = []
    if planted:
        command, printed = errand.mistake
        failed = CommandResult(output=printed, exit_code=1, total_bytes=len(printed.encode()))
        turns.append(_turn(1, command, failed, intent="error", loss_weight=mistake_weight))
    for command in errand.way:
        turns.append(_turn(len(turns) + 1, command, CommandResult(output="", exit_code=0), intent="correct"))
    return demonstration(name, AGENT, opening, turns)


def _turn(
    number: int, command: str, result: CommandResult, *, intent: Literal["correct", "error"], loss_weight: float = 1.0
) -> Turn:
    return Turn(
        index=number,
        text=f"<command>{command}</command>",
        action="command",
        command=command,
        observation=observe(result, max_tokens=AGENT.observation_tokens, count_tokens=_count, timeout_s=1.0),
        exit_code=result.exit_code,
        output_bytes=result.total_bytes,
        intent=intent,
        error_type="analysis_error" if intent == "error" else "",
        loss_weight=loss_weight,
    )


def _count(text: str) -> int:
    """No errand prints so much that anything would be cut."""
    return 1
