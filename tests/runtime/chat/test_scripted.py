"""The double itself: what it promises to those who test against it."""

import json
import subprocess
import sys

import anyio
import pytest

from runtime.chat.client import ChatClient, ChatSettings
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.chat.script import Fault, LogNormal, Reply, Rule, Rules, load_rules, responder
from runtime.chat.scripted import ScriptedServer
from runtime.errors import ChatRejected, ChatUnavailable, UserError

RULES_FILE = """
otherwise = { text = "what?" }

[[rules]]
match = "list the files"
say = [{ status = 503, retry_after = "2" }, { text = "<command>ls</command>" }]
"""


def ask(text: str, purpose: str = "t") -> ChatRequest:
    return ChatRequest(messages=(ChatMessage(role="user", content=text),), purpose=purpose, nonce=text)


def body(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


def test_rules_answer_by_the_first_match_and_stay_at_their_last_line():
    rules = Rules(
        rules=(
            Rule(match="user: a", say=(Reply(text="a1"), Reply(text="a2"))),
            Rule(match=".", say=(Reply(text="any"),)),
        )
    )
    respond = responder(rules)
    said = [respond(body(text), number).text for number, text in enumerate(["a", "b", "a", "a"], start=1)]
    assert said == ["a1", "any", "a2", "a2"]


def test_a_rules_file_is_read_strictly(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES_FILE)
    rules = load_rules(path)
    assert rules.rules[0].say == (Fault(status=503, retry_after="2"), Reply(text="<command>ls</command>"))
    assert rules.otherwise == Reply(text="what?")
    path.write_text(RULES_FILE.replace("retry_after", "retry_before"))
    with pytest.raises(UserError, match="retry_before"):
        load_rules(path)


def test_latency_is_a_calls_own_and_spreads_around_its_median():
    first, again, other = (LogNormal(median_s=2.0, sigma=0.5, seed=seed) for seed in (1, 1, 2))
    names = [f"call-{number}" for number in range(2001)]
    draws = [first.of(name) for name in names]
    assert [again.of(name) for name in reversed(names)] == draws[::-1]
    assert [other.of(name) for name in names] != draws
    assert sorted(draws)[1000] == pytest.approx(2.0, rel=0.1)
    assert sum(draws) / len(draws) == pytest.approx(first.mean_s, rel=0.1)


async def test_a_call_beyond_the_list_is_refused_by_number():
    async with ScriptedServer([]) as server, ChatClient(base_url=server.base_url, api_key="x", model="m") as client:
        with pytest.raises(ChatRejected, match="no reply for call 1"):
            await client.complete(ask("a"))


async def test_it_counts_by_purpose_and_keeps_what_it_saw():
    server = ScriptedServer(lambda *_: Reply(text="x"), latency=LogNormal(median_s=3600))
    with anyio.fail_after(30):
        async with (
            server,
            ChatClient(base_url=server.base_url, api_key="x", model="m") as client,
            anyio.create_task_group() as group,
        ):
            for who, text in (("draft", "a"), ("draft", "b"), ("judge", "c")):
                group.start_soon(client.complete, ask(text, who))
            while server.in_flight < 3:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert server.calls == {"draft": 2, "judge": 1}
    assert (server.max_in_flight, server.in_flight) == (3, 0)
    assert sorted(seen.body["messages"][0]["content"] for seen in server.requests) == ["a", "b", "c"]


async def test_leaving_ends_stalled_and_delayed_calls():
    settings = ChatSettings(deadline_s=0.001)
    server = ScriptedServer([Fault(kind="stall"), Reply(text="late", delay_s=3600)])
    with anyio.fail_after(10):
        async with server, ChatClient(base_url=server.base_url, api_key="x", model="m", settings=settings) as client:
            for text in ("a", "b"):
                with pytest.raises(ChatUnavailable):
                    await client.complete(ask(text))
    assert server.in_flight == 0


async def test_by_hand_it_prints_its_address_and_answers(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES_FILE)
    argv = [sys.executable, "-m", "runtime.chat.scripted", "--rules", str(path)]
    with anyio.fail_after(30):
        async with await anyio.open_process(argv, stderr=subprocess.PIPE) as process:
            base_url = (await process.stdout.receive()).decode().strip()
            async with ChatClient(
                base_url=base_url, api_key="x", model="m", sleep=lambda _: anyio.lowlevel.checkpoint()
            ) as client:
                assert (await client.complete(ask("please list the files"))).text == "<command>ls</command>"
            process.terminate()


def test_replies_travel_as_written():
    """What a person writes in a file is what code writes."""
    reply = Reply(text="x", reasoning="y", finish="length", delay_s=0.5)
    assert Reply.model_validate(json.loads(reply.model_dump_json())) == reply
