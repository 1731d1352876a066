"""The loop: every way in which an episode ends, and what the agent was shown on the way."""

import anyio
import pytest

from runtime.agent.episode import GRADABLE, Episode, run_episode
from runtime.agent.policy import ChatPolicy, PolicyTurn
from runtime.agent.scripted import ScriptedPolicy, ScriptedSession
from runtime.agent.settings import EVALUATE, SOLVE, AgentSettings
from runtime.chat.client import ChatClient
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.errors import BudgetExhausted, ChatRejected, ChatUnavailable, ContentFiltered, ContextOverflow
from sandbox.errors import EngineFault, SandboxLost
from sandbox.spec import CommandResult, FailureClass

DONE = "<think>it is there</think><action>done</action>"


def command(text: str) -> str:
    return f"<think>next</think>\n<command>{text}</command>"


async def play(lines, results=lambda _command: "", **settings) -> tuple[Episode, ScriptedSession]:
    session = ScriptedSession(results)
    with anyio.fail_after(10):
        episode = await run_episode(ScriptedPolicy(lines), session, "Do it.", AgentSettings(**settings), key="item/1")
    return episode, session


async def test_think_command_observe_until_done():
    episode, session = await play(
        [command("pwd"), command("false"), DONE], ["/home\n", CommandResult(output="", exit_code=1)]
    )
    assert session.commands == ["pwd", "false"]
    assert (episode.failure, episode.gradable) == (FailureClass.OK, True)
    assert [t.action for t in episode.turns] == ["command", "command", "done"]
    assert [t.observation for t in episode.turns] == [
        "exit code: 0\noutput:\n/home\n",
        "exit code: 1\noutput: (none)",
        None,
    ]
    assert [t.exit_code for t in episode.turns] == [0, 1, None]
    assert episode.turns[0].thought == "next"
    assert episode.commands == ("pwd", "false")


async def test_the_agent_is_told_its_limits_and_the_task():
    episode, _ = await play([DONE], max_turns=5, command_timeout_s=7.0)
    system, user = episode.opening
    assert "at most 5 turns" in system.content
    assert "stopped after 7 seconds" in system.content
    assert (user.role, user.content) == ("user", "Do it.")
    assert episode.prompt_version.startswith("system@1:")


async def test_a_malformed_answer_is_corrected_and_the_episode_goes_on():
    episode, session = await play(["The task is complete.", command("ls"), DONE])
    first = episode.turns[0]
    assert (first.action, first.problem) == ("malformed", "no_action")
    assert "exactly one <command>" in first.observation
    assert session.commands == ["ls"]
    assert episode.failure is FailureClass.OK


async def test_malformed_answers_in_a_row_end_it():
    episode, session = await play(["hm", command("ls"), "hm", "hm"], max_malformed=2)
    assert episode.failure is FailureClass.PARSE
    assert len(episode.turns) == 4
    assert session.commands == ["ls"]


async def test_answers_that_are_always_cut_end_as_output_length():
    episode, session = await play([command("x" * 4000)] * 2, max_tokens_per_turn=100, max_malformed=2)
    assert episode.failure is FailureClass.OUTPUT_LENGTH
    assert episode.turns[0].finish == "length"
    assert "100 tokens" in episode.turns[0].observation
    assert session.commands == []


async def test_the_turn_limit():
    episode, _ = await play([command(str(n)) for n in range(9)], max_turns=3)
    assert (episode.failure, len(episode.turns), episode.gradable) == (FailureClass.TURN_LIMIT, 3, True)


async def test_the_context_limit_by_our_own_count():
    long = "".join(f"{n}\n" for n in range(4000))
    episode, _ = await play([command("seq 4000")] * 9, lambda _c: long, context_tokens=4000, observation_tokens=1500)
    assert episode.failure is FailureClass.CONTEXT_LENGTH
    assert 1 <= len(episode.turns) < 9


async def test_the_room_left_bounds_the_answer():
    limits = []

    class Asked(ScriptedPolicy):
        async def act(self, history, *, max_tokens, temperature, key):
            limits.append((max_tokens, temperature, key))
            return await super().act(history, max_tokens=max_tokens, temperature=temperature, key=key)

    policy = Asked([command("ls"), DONE])
    settings = AgentSettings(context_tokens=1500, max_tokens_per_turn=1200, temperature=0.6)
    episode = await run_episode(policy, ScriptedSession(["x" * 1200]), "Do it.", settings, key="item/2")
    (first, *_), (second, temperature, key) = limits
    turn = episode.turns[0]
    used = turn.prompt_tokens + turn.completion_tokens + policy.count_tokens(turn.observation)
    assert (first, second) == (
        min(1200, 1500 - policy.count_tokens("".join(m.content for m in episode.opening))),
        1500 - used,
    )
    assert (temperature, key) == (0.6, "item/2/2")


async def test_the_clock_counts_model_and_commands_but_not_our_queue():
    said = PolicyTurn(text=command("make"), prompt_tokens=9, completion_tokens=9, model_s=3.0, queue_wait_s=1000.0)
    ran = CommandResult(output="", exit_code=0, duration_s=7.0)
    episode, session = await play([said] * 9, lambda _c: ran, episode_deadline_s=28.0, command_timeout_s=20.0)
    assert episode.failure is FailureClass.AGENT_TIMEOUT
    assert (episode.model_s, episode.command_s, episode.queue_wait_s) == (9.0, 21.0, 3000.0)
    assert session.timeouts_s == [20.0, 15.0, 5.0]


async def test_a_repeated_command_with_the_same_result_is_a_loop():
    episode, _ = await play([command("ls")] * 9, max_repeats=4)
    assert (episode.failure, len(episode.turns)) == (FailureClass.LOOP, 4)


async def test_waiting_for_something_that_moves_is_no_loop():
    episode, _ = await play([command("cat progress")] * 5 + [DONE], [str(n) for n in range(5)], max_repeats=3)
    assert episode.failure is FailureClass.OK


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (SandboxLost("s1", "killed"), FailureClass.SANDBOX_LOST),
        (EngineFault("docker", "exec", "no answer"), FailureClass.EXEC_ERROR),
    ],
)
async def test_the_sandbox_failing_ends_it_and_is_never_an_observation(fault, failure):
    episode, _ = await play([command("one"), command("two"), DONE], ["ok", fault])
    assert (episode.failure, episode.detail, episode.gradable) == (failure, str(fault), False)
    assert episode.turns[1].observation is None
    assert episode.commands == ("one",)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (ChatUnavailable("e", "down"), FailureClass.LLM_ERROR),
        (ContextOverflow("e", "too long"), FailureClass.CONTEXT_LENGTH),
        (ContentFiltered("e", "no"), FailureClass.LLM_FILTERED),
        (PolicyTurn(text=command("ls"), finish="filtered"), FailureClass.LLM_FILTERED),
        (PolicyTurn(text=command("ls"), finish="abort"), FailureClass.LLM_ERROR),
    ],
)
async def test_the_model_failing_ends_it_by_class(fault, failure):
    episode, session = await play([command("one"), fault], ["ok"])
    assert episode.failure is failure
    assert session.commands == ["one"]


@pytest.mark.parametrize("fault", [BudgetExhausted("e", "spent"), ChatRejected("e", "bad key", status=401)])
async def test_faults_of_the_run_pass_through(fault):
    with pytest.raises(type(fault)):
        await play([fault])


async def test_each_turn_is_handed_over_as_soon_as_it_is_over():
    seen = []

    async def on_turn(turn):
        seen.append((turn.index, len(session.commands)))

    session = ScriptedSession(lambda _c: "")
    await run_episode(ScriptedPolicy([command("a"), command("b"), DONE]), session, "x", SOLVE, key="k", on_turn=on_turn)
    assert seen == [(1, 1), (2, 2), (3, 2)]


async def test_the_conversation_grows_by_what_was_said_and_shown():
    histories = []

    class Watched(ScriptedPolicy):
        async def act(self, history, *, max_tokens, temperature, key):
            histories.append(history)
            return await super().act(history, max_tokens=max_tokens, temperature=temperature, key=key)

    policy = Watched([command("a"), "nonsense", DONE])
    episode = await run_episode(policy, ScriptedSession(["out"]), "x", SOLVE, key="k")
    last = histories[-1]
    assert last[:2] == episode.opening
    assert [entry.text for entry in last[2::2]] == [t.text for t in episode.turns[:2]]
    assert [entry.content for entry in last[3::2]] == [t.observation for t in episode.turns[:2]]


async def test_over_a_chat_endpoint_with_faults_and_a_replay_that_pays_nothing():
    script = [Reply(text=command("ls")), Fault(status=500), Reply(reasoning="hm"), Reply(text=DONE)]
    server = ScriptedServer(script)

    async def nap(_seconds):
        await anyio.lowlevel.checkpoint()

    async with server, ChatClient(base_url=server.base_url, api_key="x", model="m", sleep=nap) as client:
        first, again = [
            await run_episode(ChatPolicy(client), ScriptedSession(["a.txt"]), "Do it.", SOLVE, key="item/1")
            for _ in range(2)
        ]
    assert len(server.requests) == 4
    assert (first.failure, [t.action for t in first.turns]) == (FailureClass.OK, ["command", "malformed", "done"])
    assert first.turns[1].reasoning == "hm"
    assert first.model_s > 0
    assert [t.text for t in again.turns] == [t.text for t in first.turns]
    assert again.model_s == 0


def test_solving_and_evaluating_differ_in_turns_alone():
    assert EVALUATE.model_dump() | {"max_turns": 16} == SOLVE.model_dump()


def test_no_infrastructure_failure_is_gradable():
    for failure in FailureClass:
        if failure.startswith(("sandbox", "llm", "exec", "grade", "infra", "budget", "cancelled")):
            assert failure not in GRADABLE


async def test_an_episode_becomes_a_trajectory():
    episode, _ = await play([command("ls"), DONE])
    trajectory = episode.record(SOLVE, trajectory_id="t", run_id="r", task="tasks/1")
    assert trajectory.turns == episode.turns
    assert trajectory.settings["max_turns"] == 16
    assert (trajectory.parser_version, trajectory.failure) == (1, FailureClass.OK)
