"""A sound task, and what plants a defect in it: one file of `bad_tasks` changes some of its parts.

The players give these parts; judge and cheater are the procedural ones, which look for themselves.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generators.context import GenerationContext, Players, replay
from generators.messages import Blueprint, Certified, Draft, Environment, Reference, Rejected, Sampled, Truth
from generators.procedural.players import CHEATS, ProceduralJudge, ProceduralReviewer
from generators.roles import Cast, Played, Solver
from generators.stages import STAGES
from generators.taxonomy import load_taxonomy
from runtime.limits import Limits
from runtime.settings import GenerateSettings
from runtime.stage import Message
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine, Sandbox
from sandbox.spec import File

FOLDER = Path(__file__).parent / "bad_tasks"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that the players give."""

    instruction: str = "Write the number of lines of /home/agent/rows.txt into /home/agent/count.txt, nothing else."
    dockerfile: str = "COPY --chown=agent:agent files/ /home/agent/\nUSER agent\nWORKDIR /home/agent\n"
    initial_tests: str = (
        "from pathlib import Path\n\n\n"
        "def test_the_rows_are_there() -> None:\n"
        "    assert Path('/home/agent/rows.txt').is_file(), 'rows.txt is missing'\n"
    )
    final_tests: str = (
        "from pathlib import Path\n\n\n"
        "def test_the_count_is_right() -> None:\n"
        "    path = Path('/home/agent/count.txt')\n"
        "    assert path.is_file(), 'count.txt is missing'\n"
        "    assert path.read_text().strip() == '417'\n"
    )
    files: tuple[File, ...] = (File(path="files/rows.txt", data=b"a row\n" * 417),)
    reference: tuple[str, ...] = ("wc -l < rows.txt > count.txt",)
    cheat: str = "claim"
    cheat_ends: str = "ok"
    """How the cheater's episode ends."""
    attempts: int = 4
    repeats: int = 2
    """Runs that the reference must pass; with 24, what fails every second time is missed once in five million tries."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bad task, and the stage and reason that must reject it."""

    name: str
    stage: str
    reason: str
    parts: Parts


def planted() -> list[Planted]:
    """The bad tasks, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.toml"))]


def _read(path: Path) -> Planted:
    table = tomllib.loads(path.read_text())
    stage, reason = table.pop("stage"), table.pop("reason")
    del table["why"]
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Planted(name=path.stem, stage=stage, reason=reason, parts=dataclasses.replace(Parts(), **changes))


async def through_the_gates(
    parts: Parts, engine: Engine, out: Path, *, band: str = "", measured: Solver | None = None
) -> Certified | Rejected:
    """Pass the task through every stage up to its certificate."""
    context = GenerationContext(
        engine=engine,
        limits=Limits({"build": 2, "create": 4, "run": 8, "grade": 2, "chat": 1, "score": 1}),
        players=Players(
            cast=_cast(parts), name="planted", measured=measured, measured_name="a policy" if measured else ""
        ),
        settings=GenerateSettings(
            attempts=parts.attempts,
            attempts_least=1,
            certificate_repeats=parts.repeats,
            furnish_rounds=1,
            examine_rounds=1,
            band=band,
        ),
        run_id="planted",
        seed=0,
        out=out,
    )
    message: Message = Sampled(item="0-00000", run_id="planted", blueprint=load_taxonomy().draw(0, 0))
    for stage in STAGES:
        (message,) = await stage.handler(message, context)
        if isinstance(message, Certified | Rejected):
            return message
    raise AssertionError("no certificate and no rejection")


def _cast(parts: Parts) -> Cast:
    return Cast(
        drafter=_Drafter(parts),
        reviewer=ProceduralReviewer(),
        furnisher=_Furnisher(parts),
        examiner=_Examiner(parts),
        judge=ProceduralJudge(),
        solver=_Solver(parts),
        cheater=_Cheater(parts),
    )


@dataclass(frozen=True)
class _Drafter:
    parts: Parts

    async def draft(self, blueprint: Blueprint, *, feedback: Sequence[str] = ()) -> Draft:
        return Draft(
            title="Count the rows",
            instruction=self.parts.instruction,
            truth=Truth(strings=("marmalade-7",)),
            category=blueprint.category,
            difficulty="easy",
            tags=("wc",),
            level=1,
        )


@dataclass(frozen=True)
class _Furnisher:
    parts: Parts

    async def furnish(self, blueprint: Blueprint, draft: Draft, *, feedback: Sequence[str] = ()) -> Environment:
        return Environment(
            dockerfile=BASE_DOCKERFILE + self.parts.dockerfile,
            files=self.parts.files,
            initial_tests=self.parts.initial_tests,
        )


@dataclass(frozen=True)
class _Examiner:
    parts: Parts

    async def examine(
        self, blueprint: Blueprint, draft: Draft, environment: Environment, *, feedback: Sequence[str] = ()
    ) -> str:
        return self.parts.final_tests


@dataclass(frozen=True)
class _Solver:
    parts: Parts

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played:
        return await replay(sandbox, self.parts.reference, timeout_s=60)

    def reference(self, blueprint: Blueprint) -> Reference:
        return Reference(commands=self.parts.reference)


@dataclass(frozen=True)
class _Cheater:
    parts: Parts

    async def cheat(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox) -> Played:
        played = await replay(sandbox, CHEATS[self.parts.cheat](draft.instruction), timeout_s=60)
        return dataclasses.replace(played, failure=self.parts.cheat_ends)
