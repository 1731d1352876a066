"""The Terminus-2-compatible agent: its answers, its two claims of completion, its terminal in a real sandbox."""

import json

import anyio
import pytest
from msgspec.structs import replace

from runtime.agent.episode import run_episode
from runtime.agent.parser import Malformed
from runtime.agent.policy import ChatPolicy
from runtime.agent.scripted import ScriptedPolicy, ScriptedSession
from runtime.agent.settings import AgentSettings
from runtime.agent.terminal import as_read
from runtime.agent.terminus import Typed, read_answer
from runtime.atif import from_atif, to_atif
from runtime.atif_rules import problems
from runtime.chat.client import ChatClient
from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from sandbox.base import BASE_DOCKERFILE
from sandbox.errors import SandboxLost
from sandbox.spec import BuildContext, CommandResult, FailureClass, SandboxSpec
from tests.trainer.world import open_world

TERMINUS = AgentSettings(kind="terminus-2", max_turns=8)


def answer(*keys, complete=False):
    commands = [{"keystrokes": k, "duration": s} for k, s in keys]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


def test_an_answer_is_read_out_of_prose_and_reasoning():
    said = answer(("ls -la\n", 0.1))
    got = read_answer(f"<think>hm {{}}</think>Here it is:\n```json\n{said}\n```")
    assert isinstance(got, Typed)
    assert (got.command, got.complete, got.thought) == ("ls -la", False, "hm {}\na\np")
    assert [(entry.keys, entry.duration) for entry in got.keys] == [(b"ls -la\n", 0.1)]


def test_named_keys_stand_alone_and_are_no_text():
    got = read_answer(answer(("C-c", 0.1), ("echo C-c\n", 0.1), ("Tab", 0.1)))
    assert [entry.keys for entry in got.keys] == [b"\x03", b"echo C-c\n", b"\t"]
    assert got.command == "echo C-c"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("I am done.", "no JSON"),
        ('{"analysis": "a", "plan": "p"}', "commands: Field required"),
        (answer(("ls\n", -1)), "commands.0.duration"),
        ('{"analysis": "a", "plan": "p", "comm', "cut off"),
        (answer(("a\0b\n", 1)), "NUL"),
    ],
)
def test_what_cannot_be_read_says_why(text, detail):
    got = read_answer(text)
    assert isinstance(got, Malformed)
    assert detail in got.detail


def test_printed_text_is_told_as_a_person_would_read_it():
    assert as_read("\x1b[1;31mred\x1b[0m\r\n10%\r100%\r\nab\bc\r\n\x1b]0;title\x07$ \x07") == "red\n100%\nac\n$ "


async def play(lines, results):
    session = ScriptedSession(results)
    with anyio.fail_after(10):
        return await run_episode(ScriptedPolicy(lines), session, "Do it.", TERMINUS, key="item/1"), session


def terminal(command):
    """A session on which a terminal starts, and every look shows one line."""
    return CommandResult(output="/tmp/t 9", exit_code=0) if "mkfifo" in command else "line\n"


async def test_completion_is_asked_for_twice_and_a_doubt_in_between_counts():
    claim, doubt = answer(complete=True), answer(("ls\n", 0.1))
    episode, _ = await play([claim, doubt, claim, claim], terminal)
    assert (episode.failure, len(episode.turns)) == (FailureClass.OK, 4)
    asked = ["Are you sure" in turn.observation for turn in episode.turns]
    assert asked == [True, False, True, False]
    assert episode.turns[-1].action == "done"


async def test_a_terminal_that_takes_no_keys_is_told_to_the_agent_and_no_fault():
    def results(command):
        refused = CommandResult(output="", exit_code=124, duration_s=5.0)
        return refused if "timeout 5" in command else terminal(command)

    episode, _ = await play([answer(("ls\n", 0.1)), answer(complete=True), answer(complete=True)], results)
    assert "does not take keys" in episode.turns[0].observation
    assert (episode.failure, episode.gradable, episode.turns[0].command_s) == (FailureClass.OK, True, 5.0)


async def test_a_malformed_answer_is_corrected_in_its_own_words():
    episode, _ = await play(["ls", answer(complete=True), answer(complete=True)], terminal)
    assert episode.turns[0].observation.startswith("Previous response had parsing errors:\nERROR: there is no JSON")
    assert episode.failure is FailureClass.OK


async def test_without_a_terminal_the_episode_has_no_reward():
    episode, _ = await play([], lambda _c: CommandResult(output="", exit_code=127))
    assert (episode.failure, episode.gradable) == (FailureClass.EXEC_ERROR, False)
    assert "script" in episode.detail
    episode, _ = await play([], lambda _c: SandboxLost("s1", "out of memory"))
    assert episode.failure is FailureClass.SANDBOX_LOST


@pytest.mark.namespace
async def test_a_person_s_work_in_a_real_terminal(tmp_path):
    """Half a line, an interrupted program, a REPL, a shell that is left: over a chat endpoint, in a sandbox."""
    answers = [  # each with what must have been shown before the next one
        (answer(("cd /tmp\n", 0.1), ("echo ha", 0.0), ("lf $((40+2)) 'q\"'\n", 0.2)), 'half 42 q"'),
        (answer(("sleep 1000\n", 0.2)), ""),
        (answer(("C-c", 0.2), ("echo code=$?\n", 0.2)), "code=130"),
        (answer(("python3 -q\n", 0.2)), ">>> "),
        (answer(("6*7\n", 0.2), ("C-d", 0.2)), "\n42\n"),
        (answer(("exit\n", 0.3), ("pwd; stty size\n", 0.2)), "\n40 160\n"),
        (answer(("echo a > /home/agent/a.txt\n", 0.1), complete=True), ""),
        (answer(("", 2.0), complete=True), ""),
    ]
    awaited, shown = "", ""

    def respond(request, _number):
        nonlocal awaited, shown
        shown += request["messages"][-1]["content"]
        if awaited not in shown:
            return Reply(text=answer(("", 0.2)))
        said, awaited = answers.pop(0)
        shown = ""
        return Reply(text=said)

    patient = TERMINUS.model_copy(update={"max_turns": 200, "max_repeats": 200})
    async with open_world(tmp_path / "state") as (engine, _), ScriptedServer(respond) as server:
        built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))
        async with await engine.create(SandboxSpec(image=built.image)) as sandbox:
            session = await sandbox.open_session()
            async with ChatClient(base_url=server.base_url, api_key="x", model="m") as client:
                episode = await run_episode(ChatPolicy(client), session, "Write a.", patient, key="t/1")
            await session.aclose()
            written = await sandbox.get("/home/agent/a.txt")
    seen = [turn.observation for turn in episode.turns]
    assert (episode.failure, written) == (FailureClass.OK, b"a\n")
    printed = "".join(seen)
    for told in ('half 42 q"', "code=130", "\n42\n", "\n40 160\n"):
        assert told in printed
    assert "Write a." in episode.opening[0].content
    assert "agent@" in episode.opening[0].content
    assert episode.turns[0].command == "cd /tmp\necho half $((40+2)) 'q\"'"
    trajectory = episode.record(patient, trajectory_id="t", run_id="r", task="a")
    document = to_atif(trajectory)
    assert problems(document) == []
    calls = document["steps"][1]["tool_calls"]
    assert [call["arguments"] for call in calls][:2] == [
        {"keystrokes": "cd /tmp\n", "duration": 0.1},
        {"keystrokes": "echo ha", "duration": 0.0},
    ]
    assert from_atif(document) == replace(trajectory, agent_version="0")
