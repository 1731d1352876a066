"""Errands whose first command fails: what demonstrations show is what a sandbox answers, and the way leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from generators.obstacles import AGENT, Obstacle, draw_errand, errand_demonstrations, errand_task
from runtime.agent.episode import run_episode
from runtime.agent.scripted import ScriptedPolicy
from runtime.task import read_task, write_task
from sandbox.spec import SandboxSpec
from sandbox.verifier import grade
from tests.generators.running import namespace_engine


def test_clean_and_injected_are_of_the_same_errands() -> None:
    clean = list(errand_demonstrations(count=200, seed=1, injected=0.0))
    mixed = list(errand_demonstrations(count=200, seed=1, injected=0.5))
    assert [t.opening for t in clean] == [t.opening for t in mixed]
    planted = [t for t in mixed if t.turns[0].intent == "error"]
    assert 70 < len(planted) < 130
    assert {t.turns[0].loss_weight for t in planted} == {0.0}
    assert {t.turns[0].exit_code for t in planted} == {1}
    assert all(turn.exit_code in (0, None) for t in clean for turn in t.turns)
    assert all(c.turns == m.turns for c, m in zip(clean, mixed, strict=True) if m not in planted)


def test_the_instruction_does_not_tell_what_is_in_the_way() -> None:
    seen = {draw_errand("x", obstacle).instruction for obstacle in ("clear", "missing", "locked")}
    assert len(seen) == 1


@pytest.mark.namespace
@pytest.mark.parametrize("obstacle", ["clear", "missing", "locked"])
async def test_what_is_shown_is_what_a_sandbox_answers(tmp_path: Path, obstacle: Obstacle) -> None:
    """Every job: the planted mistake prints what is said, and the way after it ends in a full reward."""
    by_job = {(errand := draw_errand(f"{n}", obstacle)).job.split()[0]: errand for n in range(20)}
    assert sorted(by_job) == ["cp", "mv", "sort"]
    async with namespace_engine(tmp_path) as engine:
        for name, errand in by_job.items():
            write_task(errand_task(errand), tmp_path / name)
            task = read_task(tmp_path / name)
            built = await engine.build(task.context())
            assert built.ok, built.log_tail
            mistake, printed = errand.mistake
            lines = [f"<command>{command}</command>" for command in (mistake, *errand.way)]
            async with await engine.create(SandboxSpec(image=built.image)) as sandbox:
                session = await sandbox.open_session()
                policy = ScriptedPolicy([*lines, "<action>done</action>"])
                episode = await run_episode(policy, session, task.instruction, AGENT, key="x")
                await session.aclose()
                frozen = await sandbox.freeze()
            verdict = await grade(engine, frozen, task.suite(), limits=task.limits(), run_id="test")
            untouched = await grade(engine, built.image, task.suite(), limits=task.limits(), run_id="test")
            assert episode.turns[0].observation == f"exit code: 1\noutput:\n{printed}"
            assert [turn.exit_code for turn in episode.turns] == [1, *(0 for _ in errand.way), None]
            assert (verdict.reward, untouched.reward) == (1.0, 0.0)
