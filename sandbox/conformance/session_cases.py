"""Cases for one persistent session each, from `cases/session.toml`, and what is wrong when one is not met."""

from __future__ import annotations

import time
import tomllib
from importlib import resources
from typing import Literal

import msgspec

from sandbox.engine import Engine, Session
from sandbox.spec import CommandResult, Record, SandboxSpec

_MARGIN_S = 5.0
"""What a step may take beyond its own time-out unless the case says otherwise."""


class Step(Record, frozen=True):
    """One command and what it must return. Absent fields are free, except as their defaults say."""

    run: str
    timeout_s: float = 10.0
    exit: int | tuple[int, ...] | None = None
    output: str | None = None
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    timed_out: bool | Literal["any"] = False
    restarted: bool | Literal["any"] = False
    max_s: float | None = None


class SessionCase(Record, frozen=True):
    """Steps that run one after the other in the same session."""

    name: str
    steps: tuple[Step, ...]


def session_cases() -> list[SessionCase]:
    text = resources.files(__package__).joinpath("cases/session.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["case"], list[SessionCase])


async def run_session_case(engine: Engine, image: str, case: SessionCase) -> list[str]:
    """Run `case` in a fresh sandbox of `image`. The problems found; none when it is met."""
    async with await engine.create(SandboxSpec(image=image, purpose=f"conformance {case.name}")) as sandbox:
        session = await sandbox.open_session()
        try:
            return await run_steps(session, case)
        finally:
            await session.aclose()


async def run_steps(session: Session, case: SessionCase) -> list[str]:
    """Run the steps of `case` in an open session."""
    problems: list[str] = []
    for step in case.steps:
        started = time.monotonic()
        result = await session.run(step.run, timeout_s=step.timeout_s)
        took_s = time.monotonic() - started
        problems += [f"{step.run!r}: {problem}" for problem in _problems(step, result, took_s)]
    return problems


def _problems(step: Step, result: CommandResult, took_s: float) -> list[str]:
    allowed_s = step.timeout_s + _MARGIN_S if step.max_s is None else step.max_s
    codes = (step.exit,) if isinstance(step.exit, int) else step.exit
    shown = result.output if len(result.output) < 500 else result.output[:250] + "..." + result.output[-250:]
    checks = {
        f"took {took_s:.1f} s, allowed {allowed_s} s": took_s <= allowed_s,
        f"exit code {result.exit_code}, wanted {step.exit}": codes is None or result.exit_code in codes,
        f"an exit code ({result.exit_code}) after a time-out": not result.timed_out or result.exit_code is None,
        f"timed_out {result.timed_out}": step.timed_out in ("any", result.timed_out),
        f"shell_restarted {result.shell_restarted}": step.restarted in ("any", result.shell_restarted),
        f"output {shown!r}, wanted {step.output!r}": step.output in (None, result.output),
    }
    checks |= {f"output {shown!r} lacks {text!r}": text in result.output for text in step.contains}
    checks |= {f"output {shown!r} holds {text!r}": text not in result.output for text in step.lacks}
    return [problem for problem, met in checks.items() if not met]
