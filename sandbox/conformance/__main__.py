"""`python -m sandbox.conformance --engine namespace`: every check against an engine, one line each.

Exits with 1 when a check fails. The base environment is made first where the cache lacks it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from sandbox.base import BASE_DOCKERFILE
from sandbox.basebuild import default_cache
from sandbox.conformance.cheats import cheats, run_cheat
from sandbox.conformance.engine_checks import ENGINE_CHECKS, run_engine_check
from sandbox.conformance.session_cases import run_session_case, session_cases
from sandbox.engine import Engine
from sandbox.errors import SandboxError
from sandbox.open import open_engine
from sandbox.spec import BuildContext

_KINDS = ("engine", "session", "cheat")
_CASE_S = 180.0

Run = Callable[[Engine, str], Awaitable[list[str]]]


def _cases(kinds: Sequence[str]) -> list[tuple[str, str, Run]]:
    """(kind, name, run) of every case of these kinds."""
    engine = [("engine", name, partial(run_engine_check, name=name)) for name in ENGINE_CHECKS]
    session = [("session", case.name, partial(run_session_case, case=case)) for case in session_cases()]
    cheat = [("cheat", case.name, partial(run_cheat, cheat=case)) for case in cheats()]
    return [case for case in (*engine, *session, *cheat) if case[0] in kinds]


async def _outcomes(
    engine: Engine, image: str, cases: Sequence[tuple[str, str, Run]]
) -> AsyncIterator[tuple[str, list[str]]]:
    """A line and the problems of each case, one after the other."""
    for kind, name, run in cases:
        started = time.monotonic()
        try:
            with anyio.fail_after(_CASE_S):
                problems = await run(engine, image)
        except (SandboxError, TimeoutError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        verdict = "FAIL" if problems else "ok"
        yield f"{verdict:4} {kind:7} {name}  {time.monotonic() - started:.1f} s", problems


async def _check(options: argparse.Namespace) -> int:
    failures = 0
    with tempfile.TemporaryDirectory(prefix="conformance-") as state:
        async with open_engine(
            options.engine, cache=default_cache(os.environ), state=Path(state), progress=_say
        ) as engine:
            built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
            async for line, problems in _outcomes(engine, built.image, _cases(options.only or _KINDS)):
                _say("\n     ".join([line, *problems]))
                failures += bool(problems)
    _say(f"{failures} failed" if failures else "all passed")
    return min(failures, 1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox.conformance", description="Check a sandbox engine.")
    parser.add_argument("--engine", choices=("auto", "docker", "namespace"), default="auto")
    parser.add_argument("--only", choices=_KINDS, action="append", help="kind of checks; repeatable; default: all")
    try:
        return anyio.run(_check, parser.parse_args())
    except SandboxError as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
