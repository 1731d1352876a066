"""A task's own solution, run as other runners of Harbor's format run it."""

from __future__ import annotations

from generators.assemble import SOLUTION
from runtime.task import Task
from sandbox.engine import Sandbox
from sandbox.spec import File

_SOLUTION_DIR = "/solution"


async def run_solution(sandbox: Sandbox, task: Task) -> None:
    """Place the files of `solution/` and run its script as the agent user, with nothing on its standard input.

    The script is a file, so that a command in it that reads its input finds none of the script there. How it ends is
    left to the tests.

    Raises: TransferRefused, SandboxLost, EngineFault.
    """
    files = [
        File(path=f"{_SOLUTION_DIR}/{file.path}", data=file.data, mode=file.mode, owner="agent")
        for file in task.folder("solution")
    ]
    await sandbox.put(files)
    timeout_s = task.config.agent.timeout_sec or task.config.verifier.timeout_sec
    script = f"{_SOLUTION_DIR}/{SOLUTION.removeprefix('solution/')}"
    await sandbox.exec(["bash", script], env=task.config.solution.env, timeout_s=timeout_s)
