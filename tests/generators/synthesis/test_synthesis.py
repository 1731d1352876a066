"""Whole runs with procedural players: mistakes that show, recoveries that hold, the same bytes every time."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from generators.synthesis.messages import Enacted
from generators.synthesis.outputs import Shelf
from generators.synthesis.procedural import ProceduralTroupe
from generators.synthesis.run import Outcome, planned
from generators.synthesis.stages import STAGES, SynthesisContext
from runtime.agent.parser import Command, Done, parse_action
from runtime.atif_rules import problems
from runtime.limits import Limits
from runtime.trajectory import Trajectory, decode
from sandbox.engine import Sandbox
from sandbox.errors import SandboxLost
from sandbox.spec import SandboxSpec
from tests.generators.running import namespace_engine, run_and_kill, settings_for, termloom, tree
from tests.generators.synthesis.parts import count_task, family_task, synthesize, write_tasks

pytestmark = pytest.mark.namespace

SETS = ("synthesize.error_rate=0.5", "synthesize.seed=3")


def trajectories(out: Path) -> list[Trajectory]:
    return [decode(line) for line in (out / "trajectories.jsonl").read_bytes().splitlines()]


async def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", family=family_task(0), foreign=count_task())
    async with namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(tmp_path, *SETS, "synthesize.repeats=2")
        outcome = await synthesize(settings, tasks, tmp_path / "out", engine)
        assert await engine.inventory() == []
    made = trajectories(tmp_path / "out")
    assert [one.trajectory_id for one in made] == [f"{t}-s3-0{n}" for t in ("family", "foreign") for n in (0, 1)]
    assert all(one.verdict is not None and one.verdict.passed for one in made), outcome.statistics
    for one in made:
        check_record(one)
    assert sum(errors.made for errors in outcome.statistics.injected.values()) >= 4
    for path in (tmp_path / "out" / "atif").iterdir():
        assert problems(json.loads(path.read_bytes())) == []


def check_record(one: Trajectory) -> None:
    """What holds for every trajectory."""
    assert one.started_at == 0.0
    assert [turn.index for turn in one.turns] == list(range(1, len(one.turns) + 1))
    assert one.turns[-1].action == "done"
    for turn in one.turns:
        action = parse_action(turn.text)
        assert action == (Done(turn.thought) if turn.action == "done" else Command(turn.command, turn.thought))
        planted = turn.intent == "error"
        assert planted == bool(turn.error_type) == bool(turn.effect) == (turn.loss_weight == 0.0)
        assert turn.critic[-1].accepted
        assert turn.command_s == 0.0


async def test_without_an_error_rate_nothing_is_planted(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", foreign=count_task())
    async with namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(tmp_path, "synthesize.error_rate=0")
        await synthesize(settings, tasks, tmp_path / "out", engine)
    (only,) = trajectories(tmp_path / "out")
    assert [turn.command for turn in only.turns] == ["wc -l rows.txt", "wc -l < rows.txt \\\n  > count.txt", ""]
    assert [turn.thought for turn in only.turns[:2]] == ["How long is it?", "The number alone goes into the file."]


async def test_a_mistake_without_effect_is_discarded_and_counted(tmp_path: Path) -> None:
    # Of this command the only slip is to leave out the pipe's end, which shows nothing new the second time.
    solution = "VALUE=$(cat rows.txt)\n(cat rows.txt)\n(cat rows.txt) | wc -l > count.txt\n"
    tasks = write_tasks(tmp_path / "tasks", foreign=count_task(solution=solution))
    async with namespace_engine(tmp_path / "engine") as engine:
        no_targets = "synthesize.error_weights.requirement_violation=0"
        settings = settings_for(tmp_path, "synthesize.error_rate=1", no_targets)
        outcome = await synthesize(settings, tasks, tmp_path / "out", engine)
    (only,) = trajectories(tmp_path / "out")
    assert [turn.discarded for turn in only.turns] == [0, 0, 1, 0]
    assert [turn.intent for turn in only.turns] == ["correct"] * 4
    assert outcome.statistics.discarded == 1


async def test_the_turn_limit_ends_an_episode_that_is_graded_all_the_same(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", foreign=count_task())
    async with namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(tmp_path, "synthesize.error_rate=0", "synthesize.max_turns=1")
        outcome = await synthesize(settings, tasks, tmp_path / "out", engine)
    (only,) = trajectories(tmp_path / "out")
    assert (only.failure, only.reward) == ("turn_limit", 0.0)
    assert outcome.statistics.endings == {"turn_limit": 1}


async def test_a_task_that_cannot_be_played_is_named_with_its_reason(tmp_path: Path) -> None:
    tasks = write_tasks(
        tmp_path / "tasks",
        unbuilt=count_task(dockerfile="FROM nowhere\nRUN true\n"),
        unsolved=count_task(solution=None),
        whole=count_task(),
    )
    (tasks / "broken").mkdir()
    (tasks / "broken" / "task.toml").write_text("[")
    async with namespace_engine(tmp_path / "engine") as engine:
        outcome = await synthesize(settings_for(tmp_path), tasks, tmp_path / "out", engine)
    assert outcome.rejected == {"build_unsupported": 1, "no_solution": 1, "task_invalid": 1}
    assert (outcome.wanted, outcome.statistics.trajectories) == (4, 1)


@pytest.mark.parametrize("ends", ["ok", "fault"])
async def test_an_episode_leaves_no_image_to_whoever_files_it(tmp_path: Path, ends: str) -> None:
    tasks = write_tasks(tmp_path / "tasks", foreign=count_task())
    async with namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(tmp_path)
        context = SynthesisContext(
            engine=engine if ends == "ok" else MortalEngine(engine),  # type: ignore[arg-type]
            limits=Limits(settings.limits.sizes()),
            troupe=ProceduralTroupe(),
            settings=settings.synthesize,
            run_id="run",
            shelf=Shelf(tmp_path / "out"),
        )
        opening, enacting, _ = STAGES
        (opened,) = await opening.handler(planned([tasks / "foreign"], settings.synthesize, "run")[0], context)
        with nullcontext() if ends == "ok" else pytest.raises(SandboxLost):
            (enacted,) = await enacting.handler(opened, context)
            assert isinstance(enacted, Enacted)
        assert list((tmp_path / "engine" / "images").iterdir()) == []


class MortalEngine:
    """An engine whose every second sandbox for an episode dies when it is asked for a session the first time."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.died = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._engine.create(spec)
        if "enact" in spec.purpose and "grade" not in spec.purpose and self.died < 2:
            self.died += 1
            return Mortal(sandbox)  # type: ignore[return-value]
        return sandbox


class Mortal:
    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def __aenter__(self) -> Mortal:
        await self._sandbox.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._sandbox.__aexit__(*exc)

    async def open_session(self, **_: Any) -> Any:
        raise SandboxLost(self._sandbox.id, "as arranged")


async def test_a_sandbox_that_dies_costs_a_try_and_is_no_trajectory(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", family=family_task(0), foreign=count_task())
    async with namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(tmp_path, *SETS)
        await synthesize(settings, tasks, tmp_path / "sound", engine)
        mortal: Any = MortalEngine(engine)
        outcome: Outcome = await synthesize(settings, tasks, tmp_path / "mortal", mortal, patient=True)
        assert await engine.inventory() == []
    assert (mortal.died, outcome.rejected) == (2, {})
    assert tree(tmp_path / "mortal") == tree(tmp_path / "sound")


def command(tmp_path: Path, tasks: Path, out: Path, *options: str) -> list[str]:
    sets = [f"paths.state={tmp_path / out.name}.state", *SETS, "limits.run=1"]
    settings = [part for one in sets for part in ("--set", one)]
    places = ["--tasks", str(tasks), "--out", str(out), "--sandbox", "namespace"]
    return termloom("synthesize", *places, *settings, *options)


def test_a_run_that_was_killed_is_readable_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", a=family_task(0), b=count_task(), c=family_task(1))
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    subprocess.run(command(tmp_path, tasks, quiet), check=True, capture_output=True, timeout=120)
    run_and_kill(command(tmp_path, tasks, killed, "--json"), after=1, stage="file")
    assert 1 <= len(trajectories(killed)) < 3

    again = subprocess.run(command(tmp_path, tasks, killed), check=False, capture_output=True, text=True, timeout=60)
    assert (again.returncode, "Use --resume" in again.stderr) == (2, True)
    resumed = subprocess.run(
        command(tmp_path, tasks, killed, "--resume"), check=True, capture_output=True, text=True, timeout=120
    )
    assert "3 of 3 trajectories" in resumed.stdout
    assert tree(killed) == tree(quiet)

    subprocess.run(command(tmp_path, tasks, killed, "--resume", "--tau", "1.0"), check=True, capture_output=True)
    assert (killed / "sft.jsonl").read_bytes() == (quiet / "sft.jsonl").read_bytes()
    refused = subprocess.run(
        command(tmp_path, tasks, killed, "--resume", "--seed", "4"), check=False, capture_output=True, text=True
    )
    assert "synthesize.seed" in refused.stderr
