"""Each way for a task to be bad is found by the gate that is there for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from generators.certificate import BandRecord, Certificate
from generators.context import replay
from generators.messages import Blueprint, Certified, Draft, Reference, Rejected
from generators.roles import Played
from runtime.stage import RetryLater
from sandbox.engine import Sandbox
from sandbox.spec import File, SandboxSpec
from tests.generators.planted import Parts, Planted, planted, through_the_gates
from tests.generators.running import namespace_engine

pytestmark = pytest.mark.namespace


async def test_the_sound_task_passes_every_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    purposes: list[str] = []
    async with namespace_engine(tmp_path / "engine") as engine:
        create = engine.create

        async def noted(spec: SandboxSpec) -> Sandbox:
            purposes.append(spec.purpose.split()[0])
            return await create(spec)

        monkeypatch.setattr(engine, "create", noted)
        end = await through_the_gates(Parts(), engine, tmp_path / "out")
    assert isinstance(end, Certified), end
    assert "grade" in purposes
    assert "services" not in purposes, "it has none that could be looked at"
    checks = Certificate.model_validate_json(end.certificate).checks
    assert (checks.reference_passed, checks.moved_clock_passed) == (2, True)


@pytest.mark.parametrize("bad", planted(), ids=lambda bad: bad.name)
async def test_a_bad_task_is_rejected_for_its_own_reason(tmp_path: Path, bad: Planted) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        end = await through_the_gates(bad.parts, engine, tmp_path / "out")
    assert isinstance(end, Rejected), "it was certified"
    assert (end.stage, end.reason) == (bad.stage, bad.reason), end.detail


def test_there_are_thirteen_of_them() -> None:
    assert len(planted()) == 13


@pytest.mark.parametrize("ending", ["llm_error", "exec_error"])
async def test_a_cheater_that_could_not_act_earns_no_certificate(tmp_path: Path, ending: str) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        with pytest.raises(RetryLater, match=f"the cheater could not act to its end: {ending}"):
            await through_the_gates(Parts(cheat_ends=ending), engine, tmp_path / "out")


async def test_a_cheater_that_the_endpoint_filters_ends_the_item(tmp_path: Path) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        end = await through_the_gates(Parts(cheat_ends="llm_filtered"), engine, tmp_path / "out")
    assert isinstance(end, Rejected), "it was certified"
    assert (end.stage, end.reason) == ("certify", "llm_filtered")


async def test_a_vague_request_is_sound_where_a_file_says_what_it_leaves_out(tmp_path: Path) -> None:
    vague = Parts(instruction="Could you do the usual row count for me?")
    note = b"The row count of rows.txt goes to /home/agent/count.txt, the number and nothing else.\n"
    async with namespace_engine(tmp_path / "engine") as engine:
        end = await through_the_gates(
            dataclasses.replace(vague, files=(*vague.files, File(path="files/README", data=note))),
            engine,
            tmp_path / "out",
        )
    assert isinstance(end, Certified), end


async def test_a_reference_may_read_its_input(tmp_path: Path) -> None:
    reading = Parts(reference=("cat > /dev/null", *Parts().reference))
    async with namespace_engine(tmp_path / "engine") as engine:
        end = await through_the_gates(reading, engine, tmp_path / "out")
    assert isinstance(end, Certified), end


async def test_a_task_that_is_always_solved_lies_outside_the_band(tmp_path: Path) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        end = await through_the_gates(Parts(), engine, tmp_path / "out", band="1/8..7/8")
    assert isinstance(end, Rejected), "it was certified"
    assert (end.reason, end.detail) == ("out_of_band", "4 of 4 attempts passed, the band is 1/8..7/8")


class Policy:
    """Does the planted task in its first `able` attempts, and nothing in the others."""

    def __init__(self, able: int) -> None:
        self._able = able

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played:
        return await replay(sandbox, Parts().reference if attempt < self._able else (), timeout_s=60)

    def reference(self, blueprint: Blueprint) -> Reference | None:
        return None


async def test_a_band_may_be_that_of_another_policy_than_the_author(tmp_path: Path) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        sometimes = await through_the_gates(Parts(), engine, tmp_path / "out", band="1/4..3/4", measured=Policy(able=1))
        never = await through_the_gates(Parts(), engine, tmp_path / "out", band="1/4..3/4", measured=Policy(able=0))
    assert isinstance(sometimes, Certified), sometimes
    certificate = Certificate.model_validate_json(sometimes.certificate)
    assert (certificate.band, certificate.pass_rate) == (BandRecord(policy="a policy", attempts=2, passed=1), 1.0)
    assert isinstance(never, Rejected), "it was certified"
    assert (never.reason, never.detail) == ("out_of_band", "0 of 4 attempts passed, the band is 1/4..3/4")
