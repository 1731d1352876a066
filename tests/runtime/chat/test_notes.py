"""Model calls are told to whoever listens around the work, try by try, and counted."""

from __future__ import annotations

import anyio

from runtime.chat.budget import Budget, BudgetSettings, Price
from runtime.chat.client import ChatClient
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.chat.notes import CallNote, listening_to_calls
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.chat.tally import CallTally


async def at_once(_: float) -> None:
    await anyio.lowlevel.checkpoint()


def request(nonce: str = "") -> ChatRequest:
    return ChatRequest(messages=(ChatMessage(role="user", content="hello"),), purpose="drafter", nonce=nonce)


async def test_each_try_is_told_with_its_status_and_a_call_from_the_ledger_is_not():
    script = [Fault(status=429), Reply(text="hi", prompt_tokens=1000, completion_tokens=500)]
    notes: list[CallNote] = []
    budget = Budget(BudgetSettings(prices={"any": Price(input_usd_per_mtok=2.0, output_usd_per_mtok=4.0)}))
    async with (
        ScriptedServer(script) as server,
        ChatClient(base_url=server.base_url, api_key="k", model="any", budget=budget, sleep=at_once) as client,
    ):
        with listening_to_calls(notes.append):
            for _ in range(2):
                await client.complete(request())
    assert [(note.status, note.purpose, note.model) for note in notes] == [
        (429, "drafter", "any"),
        (200, "drafter", "any"),
    ]
    assert (notes[1].prompt_tokens, notes[1].completion_tokens, round(notes[1].cost, 6)) == (1000, 500, 0.004)


async def test_tasks_started_within_are_heard_and_others_are_not():
    heard: list[CallNote] = []
    async with (
        ScriptedServer([Reply(text="a"), Reply(text="b")]) as server,
        ChatClient(base_url=server.base_url, api_key="k", model="any") as client,
        anyio.create_task_group() as group,
    ):
        with listening_to_calls(heard.append):
            group.start_soon(client.complete, request("within"))
        await client.complete(request("outside"))
    assert len(heard) == 1


def note(at: float, status: int | None, latency_s: float = 1.0) -> CallNote:
    return CallNote(at=at, purpose="p", model="m", status=status, latency_s=latency_s, completion_tokens=2)


def test_tries_are_counted_by_status_and_quantiles_are_those_of_answers():
    tally = CallTally()
    for n in range(1, 101):
        tally(note(float(n), 200, latency_s=float(n)))
    for status in (429, 429, 500, None):
        tally(note(100.0, status, latency_s=1000.0))
    assert (tally.tries, tally.answered, tally.told_to_slow_down, tally.failed) == (104, 100, 2, 2)
    assert (tally.latency_s(0.5), tally.latency_s(0.95), CallTally().latency_s(0.5)) == (50.0, 95.0, 0.0)
    assert tally.rate_per_min(now=100.0) == 61
    assert tally.rate_per_min(now=1000.0) == 0


def test_answers_of_long_ago_are_forgotten_though_nobody_asks_for_the_rate():
    tally = CallTally()
    for n in range(1000):
        tally(note(float(n), 200))
    assert len(tally._answered_at) == 61
