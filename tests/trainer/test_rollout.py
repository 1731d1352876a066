"""Episodes in real sandboxes: what carries a reward, what is tried again, what ends without one."""

import anyio
import pytest

from runtime.agent.scripted import ScriptedPolicy
from runtime.agent.settings import AgentSettings
from runtime.blobs import Blobs
from runtime.errors import ChatUnavailable, UserError
from runtime.stage import Rejected, RetryLater
from runtime.trajectory import decode
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import FailureClass
from tests.trainer.world import make_task, open_world
from trainer.arena import find_tasks
from trainer.rollout import RolledOut, RolloutAsked, RolloutContext, persevere, play, rollout

pytestmark = pytest.mark.namespace
RIGHT = ("<command>echo a > a.txt</command>", "<action>done</action>")
WRONG = ("<command>echo b > a.txt</command>", "<action>done</action>")


@pytest.fixture
async def world(tmp_path):
    async with open_world(tmp_path / "state") as (engine, arena):
        yield engine, arena


def context(world, tmp_path, lines, **more):
    settings = AgentSettings(**{"max_turns": 4, **more.pop("settings", {})})
    blobs = Blobs(tmp_path / "blobs")
    return RolloutContext(arena=world[1], policy=ScriptedPolicy(lines), settings=settings, blobs=blobs, **more)


def asked(task, member=0):
    return RolloutAsked(item=f"{task.name}/0/{member}", run_id="test", task=str(task), group=f"{task.name}/0")


async def test_the_reward_comes_from_what_was_left_behind(world, tmp_path):
    task = make_task(tmp_path, "a")
    (right,) = await rollout(asked(task), context(world, tmp_path, RIGHT))
    (wrong,) = await rollout(asked(task, 1), context(world, tmp_path, WRONG))
    assert isinstance(right, RolledOut)
    assert (right.reward, right.failure) == (1.0, "ok")
    assert (wrong.reward, wrong.failure) == (0.0, "agent_fail")
    kept = decode(Blobs(tmp_path / "blobs").get(right.trajectory))
    assert kept.trajectory_id == "a/0/0"
    assert [turn.command for turn in kept.turns] == ["echo a > a.txt", ""]
    assert await world[0].inventory() == []


async def test_a_terminus_agent_is_rolled_out_and_graded_alike(world, tmp_path):
    typed = '{"analysis": "", "plan": "", "commands": [{"keystrokes": "echo a > a.txt\\n", "duration": 1}]}'
    claim = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
    agent = {"kind": "terminus-2"}
    got = await play(asked(make_task(tmp_path, "a")), context(world, tmp_path, (typed, claim, claim), settings=agent))
    assert (got.reward, got.failure) == (1.0, FailureClass.OK)
    assert [turn.command for turn in got.turns] == ["echo a > a.txt", "", ""]
    assert got.settings["kind"] == "terminus-2"


async def test_an_episode_that_ran_out_of_turns_is_graded(world, tmp_path):
    got = await play(asked(make_task(tmp_path, "a")), context(world, tmp_path, RIGHT, settings={"max_turns": 1}))
    assert (got.reward, got.failure) == (1.0, FailureClass.TURN_LIMIT)


@pytest.mark.parametrize("graded", [True, False])
async def test_a_full_context_is_graded_or_excluded_as_the_recipe_says(world, tmp_path, graded):
    small = {"context_tokens": 700, "min_answer_tokens": 290}
    long = (f"<think>{'x' * 400}</think>{RIGHT[0]}", RIGHT[1])
    got = await play(
        asked(make_task(tmp_path, "a")), context(world, tmp_path, long, settings=small, grade_overflow=graded)
    )
    if graded:
        assert (got.reward, got.failure) == (1.0, FailureClass.CONTEXT_LENGTH)
    else:
        assert isinstance(got, Rejected)
        assert got.reason == "context_length"


@pytest.mark.parametrize("graded", [True, False])
async def test_answers_cut_at_their_limit_are_graded_or_excluded_as_the_recipe_says(world, tmp_path, graded):
    short = {"max_tokens_per_turn": 60, "max_malformed": 2}
    cut = "<think>" + "word " * 200
    got = await play(
        asked(make_task(tmp_path, "a")),
        context(world, tmp_path, [RIGHT[0], cut, cut], settings=short, grade_overflow=graded),
    )
    if graded:
        assert (got.reward, got.failure) == (1.0, FailureClass.OUTPUT_LENGTH)
    else:
        assert isinstance(got, Rejected)
        assert got.reason == "output_length"


async def test_a_policy_that_cannot_be_reached_is_tried_again_and_never_a_reward(world, tmp_path):
    lost = context(world, tmp_path, [ChatUnavailable("engine", "refused")])
    task = make_task(tmp_path, "a")
    with pytest.raises(RetryLater, match="llm_error"):
        await rollout(asked(task), lost)
    got = await persevere(asked(task), lost, attempts=2)
    assert isinstance(got, Rejected)
    assert got.reason == "gave_up: llm_error"


async def test_an_environment_that_does_not_build_ends_all_its_episodes(world, tmp_path):
    task = make_task(tmp_path, "a", dockerfile=f"{BASE_DOCKERFILE}RUN exit 3\n")
    got = [await persevere(asked(task, i), context(world, tmp_path, RIGHT), attempts=3) for i in range(2)]
    assert [g.reason for g in got] == ["environment", "environment"]


async def test_services_run_during_the_episode_and_again_for_the_tests(world, tmp_path):
    serve = "python3 -m http.server 8000 --bind 127.0.0.1 --directory /home/agent"
    look = "curl -sf -o /dev/null http://127.0.0.1:8000/"
    test = "import urllib.request as r; assert r.urlopen('http://127.0.0.1:8000/a.txt', timeout=9).read() == b'up\\n'"
    task = make_task(tmp_path, "a", test=test, services=[{"name": "web", "command": serve, "check": look}])
    use = (f"<command>{look} && echo up > a.txt</command>", "<action>done</action>")
    got = await play(asked(task), context(world, tmp_path, use))
    assert (got.reward, got.failure) == (1.0, FailureClass.OK)


async def test_a_service_that_does_not_come_up_is_no_reward(world, tmp_path):
    task = make_task(tmp_path, "a", services=[{"name": "web", "command": "exit 3", "check": "false"}])
    got = await persevere(asked(task), context(world, tmp_path, RIGHT), attempts=2)
    assert isinstance(got, Rejected)
    assert "service web ended before it was healthy" in got.detail


async def test_tests_that_hang_give_no_reward(world, tmp_path):
    task = make_task(tmp_path, "a", test="import time; time.sleep(600)")
    toml = (task / "task.toml").read_text()
    (task / "task.toml").write_text(f"{toml}\n[verifier]\ntimeout_sec = 2.0\n")
    got = await persevere(asked(task), context(world, tmp_path, RIGHT), attempts=1)
    assert isinstance(got, Rejected)
    assert got.reason == "grade_timeout"


async def test_many_episodes_share_one_image(world, tmp_path):
    task, setting = make_task(tmp_path, "a"), context(world, tmp_path, RIGHT)
    done = []

    async def one(member):
        done.append(await play(asked(task, member), setting))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for member in range(6):
                group.start_soon(one, member)
    assert [got.reward for got in done] == [1.0] * 6
    assert await world[0].inventory() == []


def test_tasks_are_found_in_folders_and_by_themselves(tmp_path):
    first, second = make_task(tmp_path / "x", "a"), make_task(tmp_path / "x", "b")
    assert find_tasks([tmp_path / "x"]) == find_tasks([second, first]) == [first, second]
    make_task(tmp_path / "y", "a")
    with pytest.raises(UserError, match="a second task named 'a'"):
        find_tasks([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(UserError, match="holds no task"):
        find_tasks([tmp_path])
