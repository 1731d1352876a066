"""Tasks and trajectories for the tests of synthesis, made without running anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from generators.assemble import assemble
from generators.certificate import Checks, issue
from generators.messages import Examined, Solved
from generators.outdir import place_of, prepare
from generators.procedural.compose import compose
from generators.synthesis.run import COMMAND, Outcome, run_synthesis, task_directories
from generators.taxonomy import load_taxonomy
from runtime.chat.messages import ChatMessage
from runtime.events import RunEvent
from runtime.settings import Settings
from runtime.task import Task, TaskConfig, write_task
from runtime.trajectory import Trajectory, Turn
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine
from sandbox.spec import FailureClass, File, GradedTest, Verdict

COUNT_TESTS = """
from pathlib import Path

def test_there_is_a_count() -> None:
    assert Path("/home/agent/count.txt").is_file(), "count.txt is missing"

def test_the_count_is_right() -> None:
    path = Path("/home/agent/count.txt")
    assert path.is_file() and path.read_text().strip() == "7", "not 7"
"""
SOLUTION = """\
#!/bin/bash
set -euo pipefail
# How long is it?
wc -l rows.txt

# The number alone goes into the file.
wc -l < rows.txt \\
  > count.txt
exit 0
"""


def count_task(*, solution: str | None = SOLUTION, dockerfile: str = "") -> Task:
    """A task that no family makes: count the lines of a file."""
    lines = "COPY --chown=agent:agent files/ /home/agent/\nUSER agent\nWORKDIR /home/agent\n"
    files = [
        File(path="environment/Dockerfile", data=(dockerfile or BASE_DOCKERFILE + lines).encode()),
        File(path="environment/files/rows.txt", data=b"row\n" * 7),
        File(path="tests/test.sh", data=b"#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n", mode=0o755),
        File(path="tests/test_outputs.py", data=COUNT_TESTS.encode()),
    ]
    if solution is not None:
        files.append(File(path="solution/solve.sh", data=solution.encode(), mode=0o755))
    inventory = ["test_there_is_a_count", "test_the_count_is_right"]
    config = TaskConfig.model_validate({"metadata": {"termloom": {"inventory": inventory}}})
    instruction = "Write the number of lines of /home/agent/rows.txt into /home/agent/count.txt, nothing else.\n"
    return Task(config=config, instruction=instruction, files=tuple(files))


def family_task(index: int, *, level: int = 3, seed: int = 11) -> Task:
    """A task of our families with a certificate, as `generate` publishes it."""
    blueprint = load_taxonomy().draw(seed, index, categories=("security", "database"), levels=(level,))
    made = compose(blueprint)
    inventory = tuple(re.findall(r"^def (test_\w+)\(", made.final_tests, re.MULTILINE))
    examined = Examined(
        item=f"{seed}-{index:05d}",
        run_id="run",
        blueprint=blueprint,
        draft=made.draft,
        environment=made.environment,
        final_tests=made.final_tests,
        inventory=inventory,
        failing=inventory,
    )
    solved = Solved(item=examined.item, run_id="run", examined=examined, attempts=(), reference=made.reference)
    checks = Checks(
        failing_at_start=inventory,
        reference_runs=3,
        reference_passed=3,
        solution_script_passed=True,
        no_op_reward=0,
        cheater_reward=0,
        cheater_commands=0,
        cheater_digest="",
        truth=made.draft.truth.strings,
    )
    task = assemble(solved, seed=seed)
    certificate = issue(
        task, blueprint=blueprint, seed=seed, checks=checks, attempts=(), players="procedural", prompts={}
    )
    return Task(config=task.config, instruction=task.instruction, files=task.files, certificate=certificate.encode())


def write_tasks(folder: Path, **tasks: Task) -> Path:
    for name, task in tasks.items():
        write_task(task, folder / name)
    return folder


async def synthesize(settings: Settings, tasks: Path, out: Path, engine: Engine, *, patient: bool = False) -> Outcome:
    """Run to the end; unless patient, a fault or a retry fails the test at once with its cause."""

    def refuse_faults(event: RunEvent) -> None:
        if event.kind in ("fault", "retry") and not patient:
            raise AssertionError(f"{event.stage} {event.item}: {event.detail}")

    place = place_of(out, settings.paths.state, COMMAND)
    prepare(place, resume=False)
    return await run_synthesis(settings, place, task_directories(tasks), engine=engine, on_event=refuse_faults)


def turn(index: int = 1, command: str = "true", **fields: Any) -> Turn:
    known = {"action": "command", "intent": "correct", "observation": "exit code: 0", "exit_code": 0}
    text = f"<think>so</think>\n<command>{command}</command>"
    return Turn(**({"index": index, "text": text, "thought": "so", "command": command} | known | fields))


def trajectory(name: str = "t", *turns: Turn, passed: int = 2, tests: int = 2, **fields: Any) -> Trajectory:
    graded = tuple(GradedTest(name=f"t{n}", outcome="passed" if n < passed else "failed") for n in range(tests))
    reward = float(passed == tests)
    known = {
        "run_id": "run",
        "task": "task",
        "opening": (ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="do it")),
        "failure": FailureClass.OK,
        "verdict": Verdict(reward=reward, failure=FailureClass.OK, tests=graded),
        "source": "synthesis",
    }
    return Trajectory(**({"trajectory_id": name, "turns": turns or (turn(),)} | known | fields))
