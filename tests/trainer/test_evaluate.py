"""Rates, intervals, analysis, comparison and the page: as pure functions; and one evaluation in real sandboxes."""

import json
from itertools import combinations

import msgspec
import pytest

from runtime.agent.scripted import ScriptedPolicy
from runtime.agent.settings import AgentSettings
from runtime.blobs import Blobs
from runtime.chat.messages import ChatMessage
from runtime.cli import run
from runtime.errors import ChatUnavailable, UserError
from runtime.trajectory import Trajectory, Turn
from sandbox.spec import FailureClass, Verdict
from tests.trainer.world import limits, make_task, open_world
from trainer.analysis import analyse, diversity_after_error, error_type, is_loop
from trainer.basis import Player, basis_of
from trainer.compare import compare_evaluations, differences
from trainer.evaluate import (
    Attempt,
    Evaluation,
    TaskResult,
    bootstrap,
    missing,
    pass_at_k,
    rate,
    read_evaluation,
    read_trajectories,
    run_evaluation,
    write_evaluation,
)
from trainer.report import _measured, write_report
from trainer.rollout import RolloutContext
from trainer.screen import show_evaluation


def command(text, code=0, seen="", **more):
    return Turn(
        index=1,
        text=f"<command>{text}</command>",
        action="command",
        command=text,
        exit_code=code,
        observation=seen,
        **more,
    )


DONE = Turn(index=9, text="<action>done</action>", action="done")


def episode(turns, *, passed, failure=FailureClass.OK, task="t", name="e"):
    return Trajectory(
        trajectory_id=name,
        run_id="r",
        task=task,
        opening=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content="do <b>it</b>")),
        turns=tuple(turns),
        failure=failure if passed or failure is not FailureClass.OK else FailureClass.AGENT_FAIL,
        verdict=Verdict(reward=float(passed), failure=FailureClass.OK),
    )


def task_result(name, outcomes, **more):
    attempts = tuple(
        Attempt(index=i, reward=outcome, failure="ok" if outcome is not None else "llm_error")
        for i, outcome in enumerate(outcomes)
    )
    return TaskResult(name=name, hash=f"hash-{name}", limits={"cpus": 1.0}, attempts=attempts, **more)


def evaluation(tasks, trajectories=(), **more):
    settings = {"max_turns": 4, "parser_version": 1}
    values = {"model": "m", "policy_version": 1, "settings": settings, "attempts": 4, **more}
    return Evaluation(
        agent_version="0", prompt_version="p", engine="e", seed=0, created_at=0.0, tasks=tuple(tasks),
        analysis=analyse(trajectories), **values
    )  # fmt: skip


@pytest.mark.parametrize(("graded", "passed", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (7, 3, 5)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(graded, passed, k):
    draws = list(combinations([True] * passed + [False] * (graded - passed), k))
    assert pass_at_k(graded, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_attempts_without_a_verdict_are_in_no_rate_and_shown_apart():
    tasks = [
        task_result("a", [1.0, 0.0, None, None]),
        task_result("b", [1.0, 1.0, 1.0, 1.0]),
        task_result("c", [None] * 4),
    ]
    one, four = rate(tasks, 1), rate(tasks, 4)
    assert (one.value, one.tasks) == (0.75, 2)
    assert (four.value, four.tasks) == (1.0, 1)
    assert missing(evaluation(tasks)) == {"llm_error": 6}


def test_what_graded_nothing_is_not_measured_and_no_rate_of_zero(tmp_path, capsys):
    lost = evaluation([task_result("a", [None]), task_result("b", [None])])
    won = evaluation([task_result("a", [1.0]), task_result("b", [0.0])])
    assert (rate(lost.tasks, 1).value, rate(lost.tasks, 1).tasks) == (None, 0)
    assert show_evaluation(lost, tmp_path, as_json=False) == 1
    assert "pass@1: not measured over 0 tasks" in capsys.readouterr().out
    show_evaluation(lost, tmp_path, as_json=True)
    shown = json.loads(capsys.readouterr().out)["rates"][0]
    assert (shown["value"], shown["low"], shown["high"]) == (None, None, None)
    assert _measured({"before_ppo": won, "step-000002": lost, "end": won}, last=5) == [
        (step, 0.5, *bootstrap([1.0, 0.0], resamples=2000, seed=0)) for step in (0, 5)
    ]
    got = compare_evaluations(won, lost)
    assert (got.tasks, got.second, got.difference, got.decided) == (0, None, None, False)
    write_evaluation(won, [], tmp_path / "won")
    write_evaluation(lost, [], tmp_path / "lost")
    assert "<td>not measured</td>" in write_report(tmp_path / "lost").read_text()
    assert run(["compare", str(tmp_path / "won"), str(tmp_path / "lost")]) == 0
    out = capsys.readouterr().out
    assert "pass@1 not measured and not measured over 0 tasks" in out
    assert "second - first: not measured, no task was graded in both" in out


def test_the_interval_is_seeded_and_holds_the_rate():
    tasks = [task_result(str(i), [float(i % 3 == 0)]) for i in range(30)]
    first, again = rate(tasks, 1, seed=1), rate(tasks, 1, seed=1)
    assert first == again
    values = [i**1.5 for i in range(30)]
    assert bootstrap(values, resamples=50, seed=1) != bootstrap(values, resamples=50, seed=2)
    assert first.low < first.value < first.high
    assert 0.2 < first.high - first.low < 0.5


def test_loops_exhaustion_and_wrong_stops_are_told_apart():
    same = [command("ls", 1)] * 6
    different = [command(f"ls {i}", 1) for i in range(6)]
    loop = episode(same, passed=False, failure=FailureClass.TURN_LIMIT)
    wander = episode(different, passed=False, failure=FailureClass.TURN_LIMIT)
    stop = episode([command("ls"), DONE], passed=False)
    good = episode([command("x", 127), command("y"), command("z"), DONE], passed=True)
    assert [is_loop(e) for e in (loop, wander, stop, good)] == [True, False, False, False]
    assert not is_loop(episode([command("")] * 6, passed=False))  # an agent that types may wait
    got = analyse([loop, wander, stop, good])
    assert (got.episodes, got.passed) == (4, 1)
    assert (got.loops, got.exhausted, got.loops_and_exhausted, got.wrong_stops) == pytest.approx(
        (1 / 3, 2 / 3, 1 / 3, 1 / 3)
    )
    assert (got.diversity_loops, got.diversity_passed) == pytest.approx((0.2, 1.0))
    assert got.recovery["any"].rate == pytest.approx(1 / 3)
    assert got.recovery["command not found"].recovered == 1


def test_diversity_counts_after_the_first_error_only():
    turns = [command("a"), command("a"), command("b", 1), command("c"), command("c"), command("d", 2)]
    assert diversity_after_error(episode(turns, passed=False)) == pytest.approx(2 / 3)
    assert diversity_after_error(episode(turns[:2], passed=False)) is None


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        (command("x", 127), "command not found"),
        (command("x", 1, "cat: a: No such file or directory"), "missing path"),
        (command("x", 1, "Permission denied"), "permission"),
        (command("x", None, timed_out=True), "time-out"),
        (command("x", 1), "other"),
        (command("x", 1, error_type="wrong_path"), "wrong_path"),
    ],
)
def test_errors_have_types(turn, name):
    assert error_type(turn) == name


def test_nothing_to_analyse_is_no_number():
    assert analyse([]).loops is None


def test_unlike_runs_are_told_and_refused(tmp_path, capsys):
    first = evaluation([task_result("a", [1.0]), task_result("b", [0.0])])
    other = msgspec.structs.replace(
        first, settings={**first.settings, "max_turns": 8}, tasks=(task_result("a", [1.0]),)
    )
    assert differences(first, msgspec.structs.replace(first, model="n", seed=3)) == []
    told = differences(first, other)
    assert told == ["settings.max_turns is 4 in the first and 8 in the second", "task 'b' is only in the first"]
    write_evaluation(first, [], tmp_path / "1")
    write_evaluation(other, [], tmp_path / "2")
    assert run(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 2
    assert "max_turns" in capsys.readouterr().err
    assert run(["compare", str(tmp_path / "1"), str(tmp_path / "2"), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == 1


def test_what_became_of_a_full_context_is_compared_where_both_say_it(tmp_path):
    first = evaluation([task_result("a", [1.0])], context_overflow="grade", served_by="torch")
    other = msgspec.structs.replace(first, context_overflow="exclude")
    assert differences(first, other) == ["context_overflow is 'grade' in the first and 'exclude' in the second"]
    write_evaluation(first, [], tmp_path)
    old = json.loads((tmp_path / "result.json").read_text())
    for name in ("weights", "served_by", "context_overflow"):
        del old[name]
    (tmp_path / "result.json").write_text(json.dumps(old))
    earlier = read_evaluation(tmp_path)
    assert (earlier.context_overflow, earlier.served_by) == ("", "")
    assert differences(earlier, first) == differences(earlier, other) == []


def test_the_difference_is_paired_by_task():
    first = evaluation([task_result(str(i), [float(i % 2), 0.0]) for i in range(20)])
    second = evaluation([task_result(str(i), [float(i % 2), 1.0]) for i in range(20)])
    got = compare_evaluations(first, second)
    assert (got.difference, got.low, got.high) == (0.5, 0.5, 0.5)
    assert got.decided
    assert len(got.better) == 20
    assert not compare_evaluations(first, first).decided


def test_a_newer_result_is_refused(tmp_path):
    write_evaluation(evaluation([task_result("a", [1.0])]), [], tmp_path)
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(UserError, match="schema_version is 9"):
        read_evaluation(tmp_path)


def test_the_page_escapes_what_is_not_ours(tmp_path):
    evil = "<script>alert(1)</script>"
    shown = episode([command(evil, 1, seen=evil), DONE], passed=True, task=evil)
    write_evaluation(evaluation([task_result(evil, [1.0])], [shown], model=evil), [shown], tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "do &lt;b&gt;it&lt;/b&gt;" in page


def test_the_page_tells_the_run_in_one_sentence_that_few_tasks_cannot_tilt(tmp_path):
    names = [str(i) for i in range(8)]
    start = evaluation([task_result("0", [1.0]), *(task_result(name, [None]) for name in names[1:])])
    before = evaluation([task_result(name, [0.0]) for name in names])
    end = evaluation([task_result(name, [1.0]) for name in names])
    for name, got in (("start", start), ("before_ppo", before), ("end", end)):
        write_evaluation(got, [], tmp_path / "run" / "evaluations" / name)
    page = write_report(tmp_path / "run").read_text()
    assert "pass@1 0.0% before PPO, <b>100.0%</b> at the end: +100.0%" in page
    assert "over 8 tasks" in page
    assert "No command of a graded episode failed." in page


def test_the_page_shows_the_course_of_ppo_and_tasks_from_all_over_the_list(tmp_path):
    names = [f"t{number}" for number in range(9)]
    rewards = {"start": 0.0, "before_ppo": 0.0, "step-000002": 0.0, "end": 1.0}
    found = {name: evaluation([task_result(task, [reward]) for task in names]) for name, reward in rewards.items()}
    assert _measured(found, last=5) == [(0, 0.0, 0.0, 0.0), (2, 0.0, 0.0, 0.0), (5, 1.0, 1.0, 1.0)]
    for name, reward in rewards.items():
        shown = [episode([DONE], passed=reward == 1.0, task=task) for task in names]
        write_evaluation(found[name], shown, tmp_path / "run" / "evaluations" / name)
    page = write_report(tmp_path / "run").read_text()
    assert [task for task in names if f"<h3>{task}</h3>" in page] == ["t0", "t1", "t3", "t6"]
    assert "at the start: <b" not in page  # random weights say nothing that could be read


def test_how_episodes_failed_is_printed_and_in_the_json(tmp_path, capsys):
    lost = episode([command("x", 1), command("y", 0), DONE], passed=False)
    won = episode([command("x", 1), command("y", 0), DONE], passed=True)
    got = evaluation([task_result("t", [0.0, 1.0])], [lost, won])
    assert show_evaluation(got, tmp_path, as_json=False) == 0
    told = "failed: 1 of 2 (0% loop, 0% turns exhausted, 100% early wrong stop); recovered from an error: 1 of 2"
    assert told in capsys.readouterr().out
    show_evaluation(got, tmp_path, as_json=True)
    shown = json.loads(capsys.readouterr().out)["analysis"]
    assert (shown["wrong_stops"], shown["recovery"]["any"]) == (1.0, {"episodes": 2, "recovered": 1})


@pytest.mark.namespace
async def test_an_evaluation_in_real_sandboxes_counts_shows_and_goes_on_where_it_was(tmp_path):
    tasks = [make_task(tmp_path / "tasks", name) for name in ("a", "b")]
    asked = []

    class Counting(ScriptedPolicy):
        async def act(self, history, *, max_tokens, temperature, key):
            asked.append(key)
            if key.startswith("b/0/1"):
                raise ChatUnavailable("endpoint", "refused")
            return await super().act(history, max_tokens=max_tokens, temperature=temperature, key=key)

    async with open_world(tmp_path / "state") as (engine, arena):
        context = RolloutContext(
            arena=arena,
            policy=Counting(["<command>echo a > a.txt</command>", "<action>done</action>"]),
            settings=AgentSettings(max_turns=4),
            blobs=Blobs(tmp_path / "blobs"),
            source="evaluate",
            model="script",
        )

        basis = basis_of(
            tasks,
            context.settings,
            player=Player(model=context.model),
            engine=engine.name,
            grade_overflow=context.grade_overflow,
            attempts=2,
            seed=0,
        )

        async def evaluate():
            return await run_evaluation(
                context, tasks, tmp_path / "out", run_id="r", basis=basis, limits=limits(), concurrency=4
            )

        got = await evaluate()
        assert [[a.reward for a in task.attempts] for task in got.tasks] == [[1.0, 1.0], [0.0, None]]
        assert list(missing(got)) == ["llm_error"]
        assert got.tasks[0].limits["memory_mb"] == 2048
        assert got.settings["parser_version"] == 1
        assert len(read_trajectories(tmp_path / "out")) == 3
        calls = len(asked)
        again = await evaluate()
        assert len(asked) == calls
        assert again.tasks == read_evaluation(tmp_path / "out").tasks == got.tasks
