"""The shipped suite, on every engine that this machine has."""

from pathlib import Path

import pytest

from sandbox.conformance.cheats import Cheat, cheats, run_cheat
from sandbox.conformance.engine_checks import ENGINE_CHECKS, run_engine_check
from sandbox.conformance.session_cases import SessionCase, run_session_case, session_cases
from tests.sandbox.conftest import OpenEngine

SHIPPED = Path(__file__).parents[2] / "sandbox" / "conformance" / "cases"
OURS = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize("name", ["session.toml", "cheats.toml"])
def test_the_shipped_cases_are_the_tests_own(name: str) -> None:
    assert (SHIPPED / name).read_text() == (OURS / name).read_text()


def test_no_case_is_left_out() -> None:
    assert len(session_cases()) == 31
    assert len(cheats()) == 15


@pytest.mark.parametrize("name", ENGINE_CHECKS)
async def test_engine(name: str, open_any: OpenEngine) -> None:
    async with open_any() as (engine, image):
        assert await run_engine_check(engine, image, name) == []


@pytest.mark.parametrize("case", session_cases(), ids=lambda case: case.name)
async def test_session(case: SessionCase, open_any: OpenEngine) -> None:
    async with open_any() as (engine, image):
        assert await run_session_case(engine, image, case) == []


@pytest.mark.parametrize("cheat", cheats(), ids=lambda cheat: cheat.name)
async def test_cheat(cheat: Cheat, open_any: OpenEngine) -> None:
    async with open_any() as (engine, image):
        assert await run_cheat(engine, image, cheat) == []
