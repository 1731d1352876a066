"""Demonstrations: like episodes to the letter, and what they leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from generators.demonstrate import AGENT, demonstrations, write_demonstrations
from generators.procedural.compose import compose
from generators.procedural.library import BASICS
from generators.taxonomy import load_taxonomy
from runtime.agent.episode import run_episode
from runtime.agent.observation import observe
from runtime.agent.scripted import ScriptedPolicy, ScriptedSession
from runtime.errors import UserError
from runtime.trajectory import decode
from sandbox.namespace.engine import NamespaceEngine
from sandbox.spec import BuildContext, SandboxSpec
from tests.generators.running import namespace_engine


def test_a_seed_gives_the_same_demonstrations_and_another_seed_others() -> None:
    first = list(demonstrations(count=20, seed=3, slips=0.5, levels=[1, 2]))
    assert list(demonstrations(count=20, seed=3, slips=0.5, levels=[1, 2])) == first
    assert list(demonstrations(count=20, seed=4, slips=0.5, levels=[1, 2])) != first


async def test_a_demonstration_reads_like_an_episode_of_the_agent_loop() -> None:
    for shown in demonstrations(count=8, seed=5, slips=0.5, levels=[1, 2, 3]):
        episode = await run_episode(
            ScriptedPolicy([turn.text for turn in shown.turns]),
            ScriptedSession(lambda _: ""),
            shown.opening[1].content,
            AGENT,
            key="x",
        )
        assert (episode.opening, episode.prompt_version) == (shown.opening, shown.prompt_version)
        assert [(t.action, t.command, t.observation) for t in episode.turns] == [
            (t.action, t.command, t.observation) for t in shown.turns
        ]
        assert episode.failure == shown.failure


def test_slips_are_as_frequent_as_asked_and_marked() -> None:
    def share(slips: float) -> float:
        turns = [t for d in demonstrations(count=400, seed=1, slips=slips, levels=[1]) for t in d.turns[:-1]]
        assert all(bool(turn.error_type) == (turn.intent == "error") for turn in turns)
        return sum(turn.intent == "error" for turn in turns) / len(turns)

    assert share(0.0) == 0.0
    assert share(1.0) == 1.0
    assert 0.65 < share(0.75) < 0.85


def test_only_the_asked_families_are_shown_and_others_are_refused() -> None:
    shown = list(demonstrations(count=30, seed=0, slips=0.0, levels=[1], families=["basics-copy", "basics-sort"]))
    assert {d.turns[0].command.split()[0] for d in shown} == {"cp", "sort"}
    with pytest.raises(UserError, match="'csv-filter' cannot be demonstrated"):
        list(demonstrations(count=1, seed=0, slips=0.0, levels=[1], families=["csv-filter"]))


def test_tasks_that_are_measured_are_left_out(tmp_path: Path) -> None:
    measured = list(demonstrations(count=3, seed=9, slips=0.0, levels=[1]))
    for number, shown in enumerate(measured):
        (tmp_path / "held-out" / f"t{number}").mkdir(parents=True)
        (tmp_path / "held-out" / f"t{number}" / "instruction.md").write_text(shown.opening[1].content)
    out = tmp_path / "demonstrations.jsonl"
    written, _ = write_demonstrations(out, count=40, seed=9, slips=0.0, levels=[1], without=[tmp_path / "held-out"])
    read = [decode(line) for line in out.read_bytes().splitlines()]
    assert written == len(read) == 37
    assert not {d.opening[1].content for d in read} & {d.opening[1].content for d in measured}


@pytest.mark.namespace
@pytest.mark.parametrize("family", BASICS, ids=lambda family: family.name)
async def test_what_a_demonstration_shows_is_what_a_sandbox_answers(tmp_path: Path, family) -> None:  # type: ignore[no-untyped-def]
    reason = NamespaceEngine.probe()
    if reason is not None:
        pytest.skip(reason)
    blueprint = load_taxonomy().draw(
        1, 0, categories=[family.category], levels=[2], style="terse", families=(family.name,)
    )
    task = compose(blueprint)
    silent = next(iter(demonstrations(count=1, seed=0, slips=0.0, levels=[1]))).turns[0].observation
    async with namespace_engine(tmp_path / "state") as engine:
        built = await engine.build(BuildContext(dockerfile=task.environment.dockerfile, files=task.environment.files))
        for ways in (task.reference.commands, *((mistake.command,) for mistake in task.mistakes if mistake.step == 0)):
            sandbox = await engine.create(SandboxSpec(image=built.image, run_id="t", purpose="t"))
            async with sandbox:
                session = await sandbox.open_session()
                for command in ways:
                    result = await session.run(command, timeout_s=60)
                    assert observe(result, max_tokens=99, count_tokens=len, timeout_s=60) == silent, command
                await session.aclose()
