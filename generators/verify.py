"""Earn a task's certificate again, from its directory alone, in fresh sandboxes; say what differs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import anyio
import anyio.to_thread

from generators.assemble import INITIAL_TESTS, SOLUTION
from generators.certificate import Certificate, CertificateInvalidError, differences, missing, read_certificate
from generators.context import Bench, replay
from generators.foreign import is_foreign, try_out
from generators.handling import UnfitError
from generators.images import HeldImages
from generators.outdir import MANIFEST
from generators.procedural.players import cheating_commands
from generators.proof import NoOp, Prover, explain
from generators.roles import Played
from generators.suites import initial_suite
from runtime.causes import first_cause
from runtime.errors import TaskInvalid
from runtime.limits import Limits as NamedLimits
from runtime.settings import Settings
from runtime.stage import RetryLater
from runtime.task import Task, read_task
from sandbox.engine import Engine, Sandbox
from sandbox.errors import SandboxError
from sandbox.spec import Verdict

RUN_ID = "verify"


async def verify_all(directories: Iterable[Path], *, engine: Engine, settings: Settings) -> dict[Path, list[str]]:
    """Check every task directory, a few at once; a directory with a manifest stands for the tasks in it."""
    limits, images = NamedLimits(settings.limits.sizes()), HeldImages()
    tasks = [task for directory in directories for task in _expand(directory)]

    async def check(directory: Path) -> list[str]:
        return await verify_task(
            directory,
            engine=engine,
            limits=limits,
            images=images,
            run_id=RUN_ID,
            command_timeout_s=settings.generate.command_timeout_s,
        )

    return dict(zip(tasks, await anyio.amap(check, tasks), strict=True))


def _expand(directory: Path) -> list[Path]:
    if not (directory / MANIFEST).is_file():
        return [directory]
    return sorted(path for path in directory.iterdir() if path.is_dir())


async def verify_task(
    directory: Path,
    *,
    engine: Engine,
    limits: NamedLimits,
    images: HeldImages,
    run_id: str,
    command_timeout_s: float,
) -> list[str]:
    """What speaks against the certificate, in words; empty when it holds. Never raises for a bad directory.

    A task that was made elsewhere has no certificate: it is tried out.
    """
    try:
        task = await anyio.to_thread.run_sync(read_task, directory)
        bench = Bench(
            engine,
            limits,
            task.context(),
            task.limits(),
            services=task.services,
            run_id=run_id,
            item=str(directory),
            images=images,
        )
        if is_foreign(task):
            return await try_out(bench, task)
        certificate = read_certificate(task)
        found = differences(certificate, task)
        if missing(certificate, task):
            return found  # there is nothing to earn it with
        return found + await _earn(bench, task, certificate, command_timeout_s)
    except TaskInvalid as invalid:
        return list(invalid.problems)
    except (CertificateInvalidError, UnfitError) as problem:
        return [str(problem)]
    except (RetryLater, SandboxError) as fault:
        return [f"could not be checked: {fault}"]
    finally:
        await images.release(engine, str(directory))


async def _earn(bench: Bench, task: Task, certificate: Certificate, command_timeout_s: float) -> list[str]:
    built = await bench.build()
    if not built.ok:
        ending = f"ended with {built.exit_code}" if built.exit_code is not None else built.log_tail
        return [f"the environment does not build: `{built.failed_step}` {ending}"]
    prover = Prover(bench, built.image, task, command_timeout_s=command_timeout_s)
    checks, script = certificate.checks, task.text(SOLUTION) or ""

    async def cheat(sandbox: Sandbox) -> Played:
        commands = cheating_commands(certificate.item_seed, task.instruction)
        return await replay(sandbox, commands, timeout_s=command_timeout_s)

    async def another_day() -> list[Verdict]:
        return [await prover.another_day((script,))] if checks.moved_clock_passed else []

    try:
        (initial, no_op, (_, cheater_reward), harbor, moved), runs = await anyio.gather(
            anyio.gather(
                bench.grade(built.image, initial_suite(task.text(INITIAL_TESTS) or ""), "initial"),
                prover.no_op(checks.truth),
                prover.cheat(cheat),
                prover.script(),
                another_day(),
            ),
            anyio.amap(prover.reference, [(script,)] * (checks.reference_runs - 1)),
        )
    except ExceptionGroup as group:
        raise first_cause(group) from group
    stated = [text for text in checks.truth if text in task.instruction]
    return [
        *(["the instruction gives the answer away"] if stated else []),
        *_unequal(certificate, no_op, cheater_reward),
        *_failed("the initial tests", [initial]),
        *_failed("the reference", runs),
        *_failed("the reference, a year ahead,", moved),
        *_failed("solution/solve.sh with tests/test.sh", [harbor]),
    ]


def _unequal(certificate: Certificate, no_op: NoOp, cheater_reward: float) -> list[str]:
    checks, problems = certificate.checks, list[str]()
    if no_op.leaks:
        problems.append(f"the built image shows the answer in {', '.join(no_op.leaks[:5])}")
    if no_op.failing != checks.failing_at_start:
        changed = sorted(set(no_op.failing) ^ set(checks.failing_at_start))
        problems.append(f"other tests fail at the start than was certified: {', '.join(changed[:5])}")
    if no_op.reward >= 1.0:
        problems.append("doing nothing passes")
    if cheater_reward >= 1.0:
        problems.append("a cheater passes without doing the task")
    return problems


def _failed(what: str, verdicts: list[Verdict]) -> list[str]:
    failed = [verdict for verdict in verdicts if not verdict.passed]
    return [f"{what} failed in {len(failed)} of {len(verdicts)} runs: {explain(failed[0])}"] if failed else []
