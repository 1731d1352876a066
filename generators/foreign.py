"""A task that was made elsewhere and has no certificate, tried out: nothing done must fail, its solution must pass.

Both are graded as every attempt at it will be: by the task's own `tests/test.sh`, in a fresh sandbox without a network,
or by the trusted grader where the task says which tests there are.
"""

from __future__ import annotations

import anyio

from generators.assemble import SOLUTION
from generators.context import Bench
from generators.proof import explain
from generators.solution import run_solution
from generators.telltales import network_wanted
from runtime.causes import first_cause
from runtime.formats.format import ORIGIN
from runtime.task import Task
from sandbox.engine import Sandbox
from sandbox.spec import Verdict

_SHOWN_LOG = 300


def is_foreign(task: Task) -> bool:
    """Whether a certificate cannot be expected: the task was imported, or never said that it is one of ours."""
    return task.certificate is None and (bool(task.folder(ORIGIN)) or "termloom" not in task.config.metadata)


async def try_out(bench: Bench, task: Task) -> list[str]:
    """What speaks against the task, in words. Raises: RetryLater, SandboxError, TaskInvalid."""
    built = await bench.build()
    if not built.ok:
        log = " ".join(built.log_tail[-_SHOWN_LOG:].split())
        return [f"the environment does not build: `{built.failed_step}` ended with {built.exit_code}: {log}"]
    runs = [_run(bench, built.image, task, solve=False)]
    if task.text(SOLUTION) is not None:
        runs.append(_run(bench, built.image, task, solve=True))
    try:
        untouched, *solved = await anyio.gather(*runs)
    except ExceptionGroup as group:
        raise first_cause(group) from group
    problems = ["doing nothing passes"] if untouched.passed else []
    if untouched.reward is None:
        problems.append(f"doing nothing: {explain(untouched)}")
    return problems + [_failure(verdict) for verdict in solved if not verdict.passed]


async def _run(bench: Bench, image: str, task: Task, *, solve: bool) -> Verdict:
    async def play(sandbox: Sandbox) -> None:
        if solve:
            await run_solution(sandbox, task)

    _, verdict = await bench.attempt(image, task.suite(), "solution" if solve else "untouched", play)
    return verdict


def _failure(verdict: Verdict) -> str:
    cause = f" (it wants a network, which grading has not: {words})" if (words := network_wanted(verdict)) else ""
    return f"solution/solve.sh does not pass{cause}: {' '.join(explain(verdict).split())}"
