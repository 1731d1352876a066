"""The key of a call."""

import msgspec
import pytest

from runtime.chat.messages import ChatMessage, ChatRequest

BASE = ChatRequest(messages=(ChatMessage(role="user", content="x"),), purpose="draft", nonce="1")


def test_equal_calls_have_one_key_however_their_options_are_ordered():
    same = msgspec.structs.replace(BASE)
    assert BASE.key(model="m", extra={"a": 1, "b": 2}) == same.key(model="m", extra={"b": 2, "a": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"messages": (ChatMessage(role="system", content="x"),)},
        {"purpose": "judge"},
        {"temperature": 0.5},
        {"temperature": None},
        {"max_tokens": 1},
        {"nonce": "2"},
    ],
)
def test_whatever_matters_changes_the_key(change):
    assert msgspec.structs.replace(BASE, **change).key(model="m", extra={}) != BASE.key(model="m", extra={})


def test_model_and_options_change_the_key():
    keys = {BASE.key(model="m", extra={}), BASE.key(model="n", extra={}), BASE.key(model="m", extra={"top_p": 1})}
    assert len(keys) == 3
