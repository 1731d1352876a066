"""The policies of this package under the contract, and what is the chat policy's own."""

from contextlib import asynccontextmanager

import pytest

from runtime.agent.policy import ChatPolicy, PolicyTurn
from runtime.agent.scripted import ScriptedPolicy
from runtime.chat.client import ChatClient
from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from tests.runtime.agent.policy_contract import LINES, OPENING, SEEN, PolicyContract


@asynccontextmanager
async def chat_policy(respond):
    server = ScriptedServer(respond)
    async with server, ChatClient(base_url=server.base_url, api_key="x", model="m") as client:
        yield ChatPolicy(client, purpose="rollout"), server


def line_by_line(lines):
    """The n-th line when n assistant messages are in the request."""
    return lambda body, _number: Reply(text=lines[sum(m["role"] == "assistant" for m in body["messages"])])


class TestScriptedPolicy(PolicyContract):
    @asynccontextmanager
    async def open_policy(self, lines):
        yield ScriptedPolicy(lines)


class TestChatPolicy(PolicyContract):
    @asynccontextmanager
    async def open_policy(self, lines):
        async with chat_policy(line_by_line(lines)) as (policy, _server):
            yield policy


async def test_the_conversation_goes_out_without_reasoning():
    async with chat_policy(line_by_line(LINES)) as (policy, server):
        said = PolicyTurn(text="<command>pwd</command>", reasoning="secret")
        await policy.act((*OPENING, said, SEEN), max_tokens=9, temperature=0.5, key="k")
    sent = server.requests[0]
    assert sent.purpose == "rollout"
    assert [m["role"] for m in sent.body["messages"]] == ["system", "user", "assistant", "user"]
    assert sent.body["messages"][2]["content"] == "<command>pwd</command>"
    assert (sent.body["max_tokens"], sent.body["temperature"]) == (9, 0.5)


async def test_an_empty_answer_goes_back_as_a_word_not_as_nothing():
    async with chat_policy(line_by_line(LINES)) as (policy, server):
        await policy.act((*OPENING, PolicyTurn(text=""), SEEN), max_tokens=9, temperature=0.5, key="k")
    assert server.requests[0].body["messages"][2]["content"] == "(no answer)"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"command": "ls -la"}', "<command>ls -la</command>"),
        ('{"path": "x"}', '{"path": "x"}'),
        ("not json", "not json"),
    ],
)
async def test_a_tool_call_with_a_command_is_that_command(arguments, text):
    reply = Reply(tool="bash", arguments=arguments, finish="tool_calls")
    async with chat_policy([reply]) as (policy, _server):
        turn = await policy.act(OPENING, max_tokens=9, temperature=0.5, key="k")
    assert turn.text == text
