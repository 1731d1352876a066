"""Tolerant reading, and one repair turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from runtime.chat.client import ChatClient
from runtime.chat.messages import ChatMessage, ChatRequest
from runtime.chat.parse import ask_structured, extract_blocks, extract_json, scan, split_reasoning, strip_reasoning
from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from runtime.errors import AnswerUnusable, ContentFiltered


@pytest.mark.parametrize(
    ("text", "answer", "reasoning"),
    [
        ("plain", "plain", ""),
        ("<think>why</think>so", "so", "why"),
        ("<THINK>why</Think >so", "so", "why"),
        ("a<think>1</think>b<reasoning>2</reasoning>c", "abc", "1\n2"),
        ("so<think>cut off", "so", "cut off"),
        ("opened in the prompt</think>so", "so", "opened in the prompt"),
        ("<think/>so", "so", ""),
    ],
)
def test_reasoning_is_taken_apart(text, answer, reasoning):
    assert strip_reasoning(text) == answer
    assert split_reasoning(text)[1] == reasoning


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("<a>1</a> and <a>2</a>", ["1", "2"]),
        ("<think><a>no</a></think><a>yes</a>", ["yes"]),
        ("<a>echo '<think>'</a>", ["echo '<think>'"]),
        ("<a>echo '</think>'</a>", ["echo '</think>'"]),
        ("maybe <a>no</a>, hm</think><a>yes</a>", ["yes"]),
        ("the <a> tag: <a>yes</a>", ["yes"]),
        ("the <a> tag</think><a>yes</a>", ["yes"]),
        ("<a>cut", []),
        ("<a/>", [""]),
        ("<b>other</b>", []),
    ],
)
def test_blocks_outside_reasoning(text, contents):
    assert [block.content for block in extract_blocks(text, ("a",))] == contents


@given(st.lists(st.sampled_from(["<a>", "</a>", "<a/>", "<think>", "</think>", "x", " ", "\n"])).map("".join))
def test_scanning_loses_no_text_but_the_tags(text):
    def bare(piece: str) -> str:
        for tag in ("<a>", "</a>", "<a/>", "<think>", "</think>"):
            piece = piece.replace(tag, "")
        return piece

    assert bare("".join(span.content for span in scan(text, ("a", "think")))) == bare(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure!\n```json\n{"a": [1, {"b": 2}]}\n```\nHope it helps.', {"a": [1, {"b": 2}]}),
        ('draft {"a": 1}, better {"a": 2} as in [1]', {"a": 2}),
        ('<think>{"a": 0}</think>{"a": 1}', {"a": 1}),
        ('awk {print $1} gives {"a": "}"}', {"a": "}"}),
        ('{"a": "two\nlines\tand a tab"}', {"a": "two\nlines\tand a tab"}),
        ("[1, 2]", [1, 2]),
        ('{"a": NaN} or {"a": 1}', {"a": 1}),
    ],
)
def test_json_is_found_in_whatever_stands_around_it(text, value):
    assert extract_json(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("<think>{}</think>", "empty"),
        ("no json here", "no JSON"),
        ('{"a": {"b": 1}, "c": [', "cut off"),
        ('{"a": 1} no, better: {"a": "tw', "cut off"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_cannot_be_read_is_said_and_kept(text, problem):
    with pytest.raises(AnswerUnusable, match=problem) as caught:
        extract_json(text)
    assert caught.value.text == text


def test_half_a_surrogate_pair_in_an_escape_becomes_a_question_mark():
    assert extract_json(r'{"\ud83d": ["a\ud83d", "\ud83d\ude00"], "n": 1}') == {"?": ["a?", "\U0001f600"], "n": 1}


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    steps: list[int]


GOOD = Reply(text='Here: {"name": "n", "steps": [1]}')


async def ask_plan(script: list[Reply]) -> tuple[Plan | Exception, ScriptedServer]:
    request = ChatRequest(messages=(ChatMessage(role="user", content="plan"),), purpose="draft", nonce="1")
    server = ScriptedServer(script)
    async with server, ChatClient(base_url=server.base_url, api_key="x", model="m") as client:
        try:
            return await ask_structured(client, request, Plan), server
        except (AnswerUnusable, ContentFiltered) as exc:
            return exc, server


async def test_a_good_answer_needs_one_call():
    plan, server = await ask_plan([GOOD])
    assert plan == Plan(name="n", steps=[1])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (Reply(text='{"name": "n"}'), "- steps: Field required"),
        (Reply(text='{"name": "n", "steps": ["x"], "more": 1}'), "- steps.0: Input should be a valid integer"),
        (Reply(text='{"name": "n", "steps": [1', finish="length"), "reached the limit"),
        (Reply(reasoning="hm"), "all of it is reasoning"),
        (Reply(text="I would rather not."), "there is no JSON"),
    ],
)
async def test_a_bad_answer_is_shown_its_problems_once(bad, shown):
    plan, server = await ask_plan([bad, GOOD])
    assert plan == Plan(name="n", steps=[1])
    conversation = server.requests[1].body["messages"]
    assert [m["role"] for m in conversation] == ["user", "assistant", "user"]
    assert conversation[1]["content"] == (bad.text or "(no answer)")
    assert shown in conversation[2]["content"]


async def test_two_bad_answers_are_a_typed_failure_with_the_text():
    error, server = await ask_plan([Reply(text="no"), Reply(text='{"name": 1}', finish="length")])
    assert isinstance(error, AnswerUnusable)
    assert (error.text, error.finish) == ('{"name": 1}', "length")
    assert len(server.requests) == 2


async def test_a_filtered_answer_is_not_repaired():
    error, server = await ask_plan([Reply(text="", finish="content_filter")])
    assert isinstance(error, ContentFiltered)
    assert len(server.requests) == 1
