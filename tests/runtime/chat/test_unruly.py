"""A script made unruly: every kind of misbehaviour reaches the client as what it is."""

from __future__ import annotations

import json

import pytest

from runtime.chat.client import ChatClient, ChatSettings
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.chat.unruly import FAULTS, KINDS, Unruly

ANSWER = json.dumps({"title": "Count the rows"})


def answer(_request: dict[str, object], _number: int) -> Reply:
    return Reply(text=ANSWER)


def test_the_same_seed_misbehaves_in_the_same_calls() -> None:
    first, again = (Unruly(answer, share=0.5, seed=4) for _ in range(2))
    said = [first({}, number) for number in range(200)]
    assert [again({}, number) for number in range(200)] == said
    assert first.counts == again.counts
    assert set(first.counts) == set(KINDS)
    assert sum(one == Reply(text=ANSWER) for one in said) == 200 - first.counts.total()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_misbehaves_once_is_answered_or_told_apart(kind: str) -> None:
    unruly = Unruly(answer, share=1, kinds=[kind])

    def once(request: dict[str, object], number: int) -> Reply | Fault:
        return unruly(request, number) if number == 1 else answer(request, number)

    request = ChatRequest(messages=(ChatMessage(role="user", content="?"),), purpose="draft", nonce="a b/1")
    settings = ChatSettings(attempt_timeout_s=3 if kind == "stall" else 300, backoff_first_s=0.001)
    async with (
        ScriptedServer(once) as server,
        ChatClient(base_url=server.base_url, api_key="none", model="m", settings=settings) as client,
    ):
        got = await client.complete(request)
        assert [seen.draw for seen in server.paid] == ["a%20b/1"]
        assert [seen.call for seen in server.paid] == [client.key(request)[:24]]
        assert server.calls.total() == (2 if kind in FAULTS else 1)
    if kind in FAULTS:
        assert got.text == ANSWER
    else:
        assert (got.text != ANSWER) or got.tool
