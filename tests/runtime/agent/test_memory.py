"""The agent with memory: what it begins a fresh context with, how long that is, and what is left to train on."""

import anyio
import pytest
from msgspec.structs import replace

from runtime.agent.episode import run_episode
from runtime.agent.policy import ChatPolicy, PolicyTurn
from runtime.agent.scripted import ScriptedPolicy, ScriptedSession
from runtime.agent.settings import AgentSettings
from runtime.atif import from_atif, to_atif
from runtime.chat.client import ChatClient
from runtime.chat.messages import estimate_tokens
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.errors import ContextOverflow
from runtime.export import messages_of
from runtime.trajectory import decode, encode, segments
from sandbox.base import BASE_DOCKERFILE
from sandbox.errors import SandboxLost
from sandbox.spec import BuildContext, FailureClass, SandboxSpec
from tests.trainer.world import open_world

DONE = "<think>all there</think><action>done</action>"
SMALL = {"kind": "memory", "max_turns": 20, "context_tokens": 1100, "min_answer_tokens": 100, "memory_tokens": 256}


def command(text, thought="next"):
    return f"<think>{thought}</think>\n<command>{text}</command>"


class Forgetful(ScriptedPolicy):
    """Says its lines in order whatever context it is in, and keeps what it was asked."""

    def __init__(self, lines):
        super().__init__(lines)
        self.lines, self.asked = list(lines), []

    async def act(self, history, *, max_tokens, temperature, key):
        self.asked.append(history)
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return self._counted(line, history, max_tokens)


async def play(lines, results=lambda c: "directory: /srv/x\n" if "jobs" in c else f"{c} says\n" + "x" * 400, **more):
    policy, session = Forgetful(lines), ScriptedSession(results)
    with anyio.fail_after(10):
        settings = AgentSettings(**SMALL | more)
        episode = await run_episode(policy, session, "Do it.", settings, key="item/1")
    return episode, policy


async def test_a_full_context_is_followed_by_one_that_begins_with_a_summary():
    episode, policy = await play([*(command(f"step{n}", f"about {n}") for n in range(1, 9)), DONE])
    assert episode.failure is FailureClass.OK
    began = [turn.index for turn in episode.turns if turn.context]
    assert began
    turn = episode.turns[began[0] - 1]
    system, user = turn.context
    assert system == episode.opening[0]
    assert user.content.startswith("Do it.\n\n")
    assert f"{began[0] - 1} turns are over" in user.content
    assert f"{began[0] - 1}. step{began[0] - 1} -> exit code: 0, step{began[0] - 1} says" in user.content
    assert "directory: /srv/x" in user.content
    assert f"about {began[0] - 1}" in user.content
    assert policy.asked[began[0] - 1] == turn.context


async def test_every_context_fits_and_the_summary_does_not_grow():
    episode, policy = await play([command(f"step{n}") for n in range(20)])
    assert episode.failure is FailureClass.TURN_LIMIT
    for history in policy.asked:
        texts = [entry.text if isinstance(entry, PolicyTurn) else entry.content for entry in history]
        assert sum(map(estimate_tokens, texts)) <= 1100 - 100
    summaries = [turn.context[-1].content for turn in episode.turns if turn.context]
    assert len(summaries) > 3
    assert "earlier ones are left out" in summaries[-1]
    assert all(estimate_tokens(summary) < 256 + 200 for summary in summaries)


async def test_the_same_turns_give_the_same_summary():
    lines = [command(f"step{n}") for n in range(6)] + [DONE]
    (first, _), (second, _) = await play(list(lines)), await play(list(lines))
    assert first == second


async def test_the_agent_without_memory_ends_there():
    episode, _ = await play([command(f"step{n}") for n in range(9)], kind="minimal")
    assert episode.failure is FailureClass.CONTEXT_LENGTH


async def test_a_summary_that_leaves_no_room_ends_it():
    episode, _ = await play([command(f"step{n}") for n in range(9)], context_tokens=700, min_answer_tokens=250)
    assert episode.failure is FailureClass.CONTEXT_LENGTH
    assert not any(turn.context for turn in episode.turns)


async def test_an_endpoint_that_says_too_long_is_asked_again_once():
    overflow = ContextOverflow("e", "too long")
    episode, policy = await play([command("one"), overflow, DONE])
    assert (episode.failure, len(episode.turns), len(policy.asked)) == (FailureClass.OK, 2, 3)
    assert episode.turns[1].context
    episode, _ = await play([command("one"), overflow, overflow])
    assert episode.failure is FailureClass.CONTEXT_LENGTH


async def test_a_sandbox_that_dies_while_it_remembers_is_no_fault_of_the_agent():
    def results(text):
        return SandboxLost("s1", "killed") if "jobs" in text else "x" * 400

    episode, _ = await play([command(f"step{n}") for n in range(9)], results)
    assert (episode.failure, episode.gradable) == (FailureClass.SANDBOX_LOST, False)
    assert len(episode.turns) > 1


async def test_each_context_is_a_training_sequence_of_its_own():
    episode, policy = await play([*(command(f"step{n}") for n in range(8)), DONE])
    whole = episode.record(AgentSettings(**SMALL), trajectory_id="t", run_id="r", task="a")
    parts = segments(whole)
    assert len(parts) == 1 + sum(bool(turn.context) for turn in whole.turns) > 1
    assert [turn for part in parts for turn in part.turns] == list(whole.turns)
    assert len({part.trajectory_id for part in parts}) == len(parts)
    last = [m["content"] for m in messages_of(parts[-1])]
    assert last[:-1] == [getattr(e, "text", None) or e.content for e in policy.asked[-1]]
    assert decode(encode(whole)) == whole
    assert from_atif(to_atif(whole)) == replace(whole, agent_version="0")


def test_an_episode_of_one_context_is_itself(tmp_path):
    whole = decode(
        b'{"schema_version":1,"trajectory_id":"t","run_id":"r","task":"a","opening":[],"failure":"ok",'
        b'"turns":[{"index":1,"text":"x","action":"done"}]}'
    )
    assert segments(whole) == [whole]


@pytest.mark.namespace
async def test_over_a_chat_endpoint_in_a_real_shell(tmp_path):
    """The endpoint refuses the third prompt as too long; what follows knows where the shell stands."""
    script = [
        Reply(text=command("mkdir -p /tmp/work; sleep 500 &\ncd /tmp/work; seq 3")),
        Reply(text=command("ls /nowhere")),
        Fault(status=400, message="This model's maximum context length is 100 tokens"),
        Reply(text=command("pwd > /home/agent/a.txt")),
        Reply(text=DONE),
    ]
    async with open_world(tmp_path / "state") as (engine, _), ScriptedServer(script) as server:
        built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
        async with await engine.create(SandboxSpec(image=built.image)) as sandbox:
            session = await sandbox.open_session()
            async with ChatClient(base_url=server.base_url, api_key="x", model="m") as client:
                episode = await run_episode(
                    ChatPolicy(client), session, "Write a.", AgentSettings(kind="memory"), key="t/1"
                )
            await session.aclose()
    assert episode.failure is FailureClass.OK
    summary = episode.turns[2].context[-1].content
    assert "directory: /tmp/work" in summary
    assert "sleep 500" in summary
    assert "2. ls /nowhere -> exit code: 2, ls: cannot access" in summary
