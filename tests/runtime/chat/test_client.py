"""The client against a real server on loopback."""

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from runtime.chat.budget import Budget, BudgetSettings, Price
from runtime.chat.client import ChatClient, ChatSettings
from runtime.chat.concurrency import ConcurrencySettings
from runtime.chat.ledger import MemoryLedger
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.errors import BudgetExhausted, ChatRejected, ChatUnavailable, ContentFiltered, ContextOverflow


def ask(nonce: str = "1", **fields) -> ChatRequest:
    message = ChatMessage(role="user", content="say something")
    return ChatRequest(messages=(message,), purpose="draft", nonce=nonce, **fields)


class Naps:
    """In place of sleeping: what would have been slept."""

    def __init__(self):
        self.taken = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def client_of(server: ScriptedServer, **options) -> ChatClient:
    return ChatClient(**{"base_url": server.base_url, "api_key": "none", "model": "m", "sleep": Naps()} | options)


async def test_an_answer_comes_with_text_finish_and_usage():
    async with (
        ScriptedServer([Reply(text="hello", prompt_tokens=11, completion_tokens=3)]) as server,
        client_of(server) as client,
    ):
        got = await client.complete(ask())
    assert (got.text, got.finish, got.prompt_tokens, got.completion_tokens) == ("hello", "stop", 11, 3)
    assert (got.model, got.raw_id, got.usage_estimated, got.cached) == ("m", "scripted-1", False, False)
    assert got.latency_s > 0


async def test_what_was_asked_reaches_the_wire():
    settings = ChatSettings(extra_body={"top_p": 0.9}, max_tokens_field="max_completion_tokens")
    async with ScriptedServer([Reply(text="x")]) as server, client_of(server, settings=settings) as client:
        await client.complete(ask(temperature=0.25, max_tokens=77))
    seen = server.requests[0]
    assert seen.purpose == "draft"
    assert seen.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "say something"}],
        "temperature": 0.25,
        "top_p": 0.9,
        "max_completion_tokens": 77,
    }


async def test_no_temperature_is_sent_when_none_is_wanted():
    async with ScriptedServer([Reply(text="x")]) as server, client_of(server) as client:
        await client.complete(ask(temperature=None))
    assert "temperature" not in server.requests[0].body


@pytest.mark.parametrize(
    ("reply", "finish", "empty", "reasoning_only"),
    [
        (Reply(text="cut", finish="length"), "length", False, False),
        (Reply(), "stop", True, False),
        (Reply(reasoning="thinking"), "stop", True, True),
        (Reply(text="no", finish="content_filter"), "filtered", False, False),
        (Reply(text="gone", finish="abort"), "abort", False, False),
    ],
)
async def test_unlike_answers_are_told_apart(reply, finish, empty, reasoning_only):
    async with ScriptedServer([reply]) as server, client_of(server) as client:
        got = await client.complete(ask())
    assert (got.finish, got.is_empty, got.reasoning_only) == (finish, empty, reasoning_only)


async def test_a_tool_call_becomes_text():
    reply = Reply(tool="answer", arguments='{"a": 1}', finish="tool_calls")
    async with ScriptedServer([reply]) as server, client_of(server) as client:
        got = await client.complete(ask())
    assert (got.text, got.tool, got.finish) == ('{"a": 1}', "answer", "stop")


async def test_missing_usage_is_estimated_and_marked():
    async with ScriptedServer([Reply(text="x" * 40, usage=False)]) as server, client_of(server) as client:
        got = await client.complete(ask())
    assert got.usage_estimated
    assert (got.prompt_tokens, got.completion_tokens) == (4, 11)


@pytest.mark.parametrize("fault", [Fault(status=429), Fault(status=500), Fault(status=503), Fault(kind="cut")])
async def test_a_passing_fault_is_tried_again(fault):
    async with ScriptedServer([fault, fault, Reply(text="at last")]) as server, client_of(server) as client:
        got = await client.complete(ask())
    assert got.text == "at last"
    assert server.calls["draft"] == 3


async def test_a_stalled_try_is_cut_and_tried_again():
    settings = ChatSettings(attempt_timeout_s=0.5)

    def stall_once(_request: dict, number: int) -> Reply | Fault:
        return Fault(kind="stall") if number == 1 else Reply(text="at last")

    async with ScriptedServer(stall_once) as server, client_of(server, settings=settings) as client:
        with anyio.fail_after(30):
            assert (await client.complete(ask())).text == "at last"


async def test_retry_after_is_honoured_as_seconds_and_as_a_date():
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=300), usegmt=True)
    naps = Naps()
    script = [Fault(status=429, retry_after="45"), Fault(status=503, retry_after=date), Reply(text="x")]
    async with ScriptedServer(script) as server, client_of(server, sleep=naps) as client:
        await client.complete(ask())
    assert naps.taken[0] == 45.0
    assert 250 < naps.taken[1] <= 300


async def test_without_retry_after_the_wait_is_a_jittered_ladder(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: high)  # the top of each rung
    naps = Naps()
    script = [Fault(status=500)] * 4 + [Reply(text="x")]
    settings = ChatSettings(backoff_first_s=1.0, backoff_ceiling_s=5.0)
    async with ScriptedServer(script) as server, client_of(server, sleep=naps, settings=settings) as client:
        await client.complete(ask())
    assert naps.taken == [1.0, 2.0, 4.0, 5.0]


async def test_the_deadline_ends_the_tries_and_the_error_tells_the_story():
    settings = ChatSettings(deadline_s=100)
    script = [Fault(status=429, retry_after="30", message="slow down")] * 9
    async with ScriptedServer(script) as server, client_of(server, settings=settings) as client:
        with pytest.raises(ChatUnavailable, match=r"slow down \(try 4, 9\d of 100 s used\) \(HTTP 429\)"):
            await client.complete(ask())
    assert server.calls["draft"] == 4


async def test_nobody_listening_is_unavailable():
    async with ScriptedServer([]) as server:
        pass
    async with client_of(server, settings=ChatSettings(deadline_s=1)) as client:
        with pytest.raises(ChatUnavailable):
            await client.complete(ask())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=401, message="bad key"), ChatRejected),
        (Fault(status=404, message="no such model"), ChatRejected),
        (Fault(status=400, code="context_length_exceeded"), ContextOverflow),
        (Fault(status=400, code="content_filter"), ContentFiltered),
    ],
)
async def test_a_final_fault_is_not_tried_again(fault, error):
    async with ScriptedServer([fault] * 3) as server, client_of(server) as client:
        with pytest.raises(error) as caught:
            await client.complete(ask())
    assert server.calls["draft"] == 1
    assert caught.value.status == fault.status
    assert "none" not in str(caught.value)  # the key


async def test_the_same_call_is_paid_once():
    ledger = MemoryLedger()
    async with ScriptedServer(lambda _request, number: Reply(text=str(number))) as server:
        async with client_of(server, ledger=ledger) as client:
            first = await client.complete(ask("item/1"))
        async with client_of(server, ledger=ledger) as client:
            again = await client.complete(ask("item/1"))
            other = await client.complete(ask("item/2"))
    assert (first.text, again.text, other.text) == ("1", "1", "2")
    assert (again.cached, again.latency_s) == (True, 0.0)


async def test_the_same_call_twice_at_once_is_one_call():
    async with (
        ScriptedServer(lambda _request, number: Reply(text=str(number), delay_s=0.02)) as server,
        client_of(server) as client,
    ):
        got = await anyio.gather(client.complete(ask()), client.complete(ask()))
    assert [c.text for c in got] == ["1", "1"]
    assert len(server.requests) == 1


async def test_an_aborted_answer_is_asked_for_anew():
    async with (
        ScriptedServer([Reply(text="ha", finish="abort"), Reply(text="whole")]) as server,
        client_of(server) as client,
    ):
        await client.complete(ask())
        assert (await client.complete(ask())).text == "whole"


async def test_a_cancelled_call_still_writes_down_what_it_paid():
    class SlowLedger(MemoryLedger):
        writing, go_on = anyio.Event(), anyio.Event()

        async def put(self, key, completion, *, purpose, cost_usd):
            self.writing.set()
            await self.go_on.wait()
            await super().put(key, completion, purpose=purpose, cost_usd=cost_usd)

    ledger = SlowLedger()
    async with ScriptedServer([Reply(text="paid")]) as server, client_of(server, ledger=ledger) as client:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.complete, ask())
                await ledger.writing.wait()
                tasks.cancel_scope.cancel()
                ledger.go_on.set()
    assert len(ledger) == 1


async def test_overload_narrows_the_gate():
    async with ScriptedServer([Fault(status=429), Reply(text="x")]) as server, client_of(server) as client:
        before = client.gate.controller.limit
        await client.complete(ask())
        assert client.gate.controller.limit == before // 2


async def test_the_slot_is_free_during_a_back_off():
    flying = []

    async def look(_seconds: float) -> None:
        flying.append(client.gate.controller.in_flight)

    async with ScriptedServer([Fault(status=500), Reply(text="x")]) as server, client_of(server, sleep=look) as client:
        await client.complete(ask())
    assert flying == [0]


async def test_the_budget_is_charged_and_ends_the_calls():
    prices = {"m": Price(input_usd_per_mtok=0, output_usd_per_mtok=1000)}
    budget, ledger = Budget(BudgetSettings(max_usd=1.0, prices=prices)), MemoryLedger()
    server = ScriptedServer(lambda *_: Reply(text="x", completion_tokens=600))
    async with server, client_of(server, budget=budget, ledger=ledger) as client:
        await client.complete(ask("1", max_tokens=700))
        with pytest.raises(BudgetExhausted):
            await client.complete(ask("2", max_tokens=700))
        await client.complete(ask("1", max_tokens=700))
    assert budget.spent.usd == pytest.approx(0.6)
    assert ledger.cost_usd == pytest.approx(0.6)
    assert len(server.requests) == 1


async def test_four_thousand_calls_at_once_go_through_a_narrow_gate():
    settings = ChatSettings(concurrency=ConcurrencySettings(start=48, cap=48))
    texts = set()
    server = ScriptedServer(lambda _request, number: Reply(text=str(number), delay_s=0.001))
    async with server, client_of(server, settings=settings) as client, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            texts.add((await client.complete(ask(str(number)))).text)

        for number in range(4000):
            tasks.start_soon(one, number)
    assert len(texts) == 4000
    assert 1 < server.max_in_flight <= 48


def test_openai_is_loaded_only_where_it_is_used():
    program = (
        "import sys, runtime.chat.client, runtime.chat.scripted, runtime.agent.episode, runtime.atif\n"
        "assert not {'openai', 'httpx2', 'httpx', 'aiohttp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@asynccontextmanager
async def endpoint(reply: bytes) -> AsyncIterator[str]:
    """The address of a server that says these bytes to everyone and hangs up."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if reply:
                await stream.send(reply)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


def http(body: str, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{body}".encode()


async def test_half_a_surrogate_pair_is_a_question_mark():
    body = (
        '{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a \\ud83d"}}]}'
    )
    async with (
        endpoint(http(body)) as url,
        ChatClient(base_url=url, api_key="none", model="m", sleep=Naps()) as client,
    ):
        assert (await client.complete(ask())).text == "a ?"


@pytest.mark.parametrize(
    "reply",
    [
        b"\x00\x01 no HTTP at all\r\n\r\n",
        b"",
        http("<html>Sign in</html>", "text/html"),
        http(""),
        http("[]"),
        http("null"),
        http('{"choices": "none"}'),
        http('{"choices": [{"message": {"content": [1]}}]}'),
    ],
)
async def test_what_is_no_answer_is_tried_again_until_the_deadline(reply: bytes):
    naps, settings = Naps(), ChatSettings(deadline_s=5.0)
    async with (
        endpoint(reply) as url,
        ChatClient(base_url=url, api_key="none", model="m", sleep=naps, settings=settings) as client,
    ):
        with pytest.raises(ChatUnavailable):
            await client.complete(ask())
    assert naps.taken
