"""The procedural cast: what each player gives, and solver and cheater at work in a real sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from generators.messages import Blueprint, Environment
from generators.procedural import library
from generators.procedural.compose import compose
from generators.procedural.players import (
    CHEATS,
    ProceduralCheater,
    ProceduralSolver,
    cheating_commands,
    procedural_cast,
    with_mistake,
)
from generators.roles import Cast
from sandbox.namespace.engine import NamespaceEngine
from sandbox.spec import BuildContext, Profile, SandboxSpec
from tests.machine import base_environment, need_namespaces

_RUNNER = """
import json, sys
names = {}
exec(compile(sys.stdin.read(), "tests", "exec"), names)
outcome = {}
for name, function in list(names.items()):
    if name.startswith("test_"):
        try:
            function()
            outcome[name] = "passed"
        except AssertionError:
            outcome[name] = "failed"
print(json.dumps(outcome))
"""


def blueprint(seed: int, *, level: int = 4) -> Blueprint:
    return Blueprint(
        index=0,
        seed=seed,
        category=library.CATEGORIES[seed % len(library.CATEGORIES)],
        complexity="a short chain",
        scenario="",
        tier=1,
        tools=(),
        level=level,
    )


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[NamespaceEngine]:
    need_namespaces()
    rootfs = base_environment().rootfs
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    async with NamespaceEngine(state_dir=tmp_path / "state", rootfs=rootfs, trusted=trusted) as engine:
        yield engine


async def _built(engine: NamespaceEngine, environment: Environment) -> str:
    result = await engine.build(BuildContext(dockerfile=environment.dockerfile, files=environment.files))
    assert result.ok, result.log_tail
    return result.image


async def _outcome(engine: NamespaceEngine, image: str, tests: str) -> dict[str, str]:
    """The tests' outcome on a frozen file system, run as root in a fresh sandbox."""
    async with await engine.create(SandboxSpec(image=image, profile=Profile.GRADE)) as sandbox:
        done = await sandbox.exec(["python3", "-I", "-c", _RUNNER], stdin=tests.encode(), user="root")
    assert done.exit_code == 0, done.stderr.decode()
    outcome: dict[str, str] = json.loads(done.stdout)
    return outcome


async def test_parts_of_the_cast_belong_together() -> None:
    cast: Cast = procedural_cast()
    item = blueprint(1)
    draft = await cast.drafter.draft(item)
    environment = await cast.furnisher.furnish(item, draft)
    tests = await cast.examiner.examine(item, draft, environment)
    task = compose(item)
    assert (draft, environment, tests, cast.solver.reference(item)) == (
        task.draft,
        task.environment,
        task.final_tests,
        task.reference,
    )
    review = await cast.reviewer.review(item, draft)
    assert review.accepted
    assert review.critique
    assert (await cast.judge.judge(draft, environment, tests)).agreed


async def test_judge_names_the_path_that_is_tested_but_never_stated() -> None:
    task = compose(blueprint(1))
    hidden = "\n\ndef test_more() -> None:\n    assert read_text('/home/agent/hidden/answer.txt') == ''\n"
    judgement = await procedural_cast().judge.judge(task.draft, task.environment, task.final_tests + hidden)
    assert judgement.unstated == ("/home/agent/hidden/answer.txt",)
    assert not judgement.agreed


def test_plan_is_a_function_of_item_and_attempt() -> None:
    first, second = ProceduralSolver(slip_rate=0.5), ProceduralSolver(slip_rate=0.5)
    item = blueprint(2)
    assert [first.plan(item, n) for n in range(20)] == [second.plan(item, n) for n in range(20)]
    assert len({first.plan(item, n) for n in range(20)}) > 2


def test_slip_rate_bounds_the_share_of_slips() -> None:
    items = [blueprint(seed) for seed in range(60)]
    assert all(ProceduralSolver(slip_rate=0).plan(item, 0) == compose(item).reference.commands for item in items)
    assert all(ProceduralSolver(slip_rate=1).plan(item, 0) != compose(item).reference.commands for item in items)
    slips = sum(
        ProceduralSolver().plan(item, n) != compose(item).reference.commands for item in items for n in range(5)
    )
    assert 60 <= slips <= 120


def test_cheater_tries_every_way_over_many_items() -> None:
    instruction = "Sum /home/agent/a.txt into /home/agent/b.txt."
    seen = {cheating_commands(seed, instruction) for seed in range(100)}
    assert seen == {way(instruction) for way in CHEATS.values()}


@pytest.mark.namespace
async def test_solver_passes_with_the_reference_and_fails_with_a_slip(engine: NamespaceEngine) -> None:
    item = blueprint(3)
    task = compose(item)
    image = await _built(engine, task.environment)
    outcomes = []
    for slip_rate in (0.0, 1.0):
        solver = ProceduralSolver(slip_rate=slip_rate)
        sandbox = await engine.create(SandboxSpec(image=image))
        played = await solver.solve(item, task.draft, sandbox, attempt=0)
        assert played.commands == solver.plan(item, 0)
        assert played.turns == len(played.commands)
        assert played.failure == "ok"
        outcomes.append(await _outcome(engine, await sandbox.freeze(), task.final_tests))
    assert set(outcomes[0].values()) == {"passed"}
    assert "failed" in outcomes[1].values()


@pytest.mark.namespace
async def test_environment_builds_and_passes_its_initial_tests(engine: NamespaceEngine) -> None:
    task = compose(replace(blueprint(5), level=9))
    image = await _built(engine, task.environment)
    assert set((await _outcome(engine, image, task.environment.initial_tests)).values()) == {"passed"}
    assert "failed" in (await _outcome(engine, image, task.final_tests)).values()


@pytest.mark.namespace
async def test_cheater_gets_nowhere(engine: NamespaceEngine) -> None:
    item = blueprint(6)
    task = compose(item)
    image = await _built(engine, task.environment)
    sandbox = await engine.create(SandboxSpec(image=image))
    played = await ProceduralCheater().cheat(item, task.draft, sandbox)
    assert played.commands == cheating_commands(item.seed, task.draft.instruction)
    assert "failed" in (await _outcome(engine, await sandbox.freeze(), task.final_tests)).values()


def test_with_mistake_changes_its_step_only() -> None:
    task = compose(blueprint(7))
    for mistake in task.mistakes:
        commands = with_mistake(task.reference, mistake)
        differing = [
            n for n, pair in enumerate(zip(commands, task.reference.commands, strict=True)) if pair[0] != pair[1]
        ]
        assert differing == [mistake.step]
