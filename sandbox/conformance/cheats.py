"""Attempts to get a reward without doing the task, from `cases/cheats.toml`, and what grading made of each.

The task: write the sum of the numbers in ~/in.txt (1 to 10, one a line) to ~/sum.txt.
"""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec

from sandbox.engine import Engine
from sandbox.spec import AGENT_HOME, File, Limits, Record, SandboxSpec, Suite
from sandbox.verifier import grade

_TEST = f'''
from pathlib import Path


def test_sum_is_right():
    assert Path("{AGENT_HOME}/sum.txt").read_text().strip() == "55"
'''
SUITE = Suite(
    files=(File(path="test_outputs.py", data=_TEST.encode()),),
    inventory=("test_sum_is_right",),
    timeout_s=60.0,
    test_timeout_s=10.0,
)
_INPUT = File(path=f"{AGENT_HOME}/in.txt", data="".join(f"{n}\n" for n in range(1, 11)).encode(), owner="agent")
_LIMITS = Limits(disk_mb=256)
_RUN_ID = "conformance"
_COMMAND_TIMEOUT_S = 30.0


class Cheat(Record, frozen=True):
    """Commands of an agent and the verdict they must end in. `reward` None: none may be given, for reason `failure`."""

    name: str
    run: tuple[str, ...]
    reward: float | None = None
    failure: str | None = None


def cheats() -> list[Cheat]:
    text = resources.files(__package__).joinpath("cases/cheats.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["cheat"], list[Cheat])


async def run_cheat(engine: Engine, image: str, cheat: Cheat, *, limits: Limits = _LIMITS) -> list[str]:
    """Let `cheat` act in a fresh sandbox of `image`, then grade. The problems found; none when it got what it must."""
    spec = SandboxSpec(image=image, limits=limits, run_id=_RUN_ID, purpose=cheat.name)
    async with await engine.create(spec) as sandbox:
        await sandbox.put([_INPUT])
        session = await sandbox.open_session()
        for command in cheat.run:
            await session.run(command, timeout_s=_COMMAND_TIMEOUT_S)
        await session.aclose()
        frozen = await sandbox.freeze()
    try:
        verdict = await grade(engine, frozen, SUITE, limits=limits, run_id=_RUN_ID, purpose=cheat.name)
    finally:
        await engine.remove_image(frozen)
    problems = []
    if verdict.reward != cheat.reward:
        problems.append(f"reward {verdict.reward}, wanted {cheat.reward} ({verdict.failure}: {verdict.detail})")
    if cheat.failure is not None and verdict.failure != cheat.failure:
        problems.append(f"failure {verdict.failure}, wanted {cheat.failure}")
    return problems
