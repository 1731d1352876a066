"""Output in bounded memory, whatever comes and however it is split."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.bounded import BoundedOutput

NOTE = re.compile(r"\[\.\.\. (\d+) bytes of output dropped \.\.\.\]\n")
LIMITS = st.integers(2, 40)
TEXTS = st.text(alphabet="ab\né東🐚\x00", max_size=60)


def collected(limit: int, *chunks: bytes) -> BoundedOutput:
    output = BoundedOutput(limit)
    for chunk in chunks:
        output.feed(chunk)
    return output


@given(LIMITS, st.binary(max_size=120), st.lists(st.integers(0, 120), max_size=8))
def test_how_it_is_split_does_not_matter(limit: int, data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    split = collected(limit, *(data[a:b] for a, b in pairwise(places)))
    whole = collected(limit, data[: max(places)])
    assert (split.text(), split.total_bytes, split.dropped_bytes) == (
        whole.text(),
        whole.total_bytes,
        whole.dropped_bytes,
    )


@given(TEXTS)
def test_nothing_is_lost_within_the_limit(text: str) -> None:
    data = text.encode()
    output = collected(max(2, len(data)), *(data[i : i + 1] for i in range(len(data))))
    assert (output.text(), output.dropped_bytes) == (text, 0)


@given(LIMITS, TEXTS)
def test_head_dropped_and_tail_make_the_whole_and_no_character_is_split(limit: int, text: str) -> None:
    data = text.encode()
    output = collected(limit, data)
    shown = output.text()
    assert "\ufffd" not in shown
    if len(data) <= limit:
        return
    before, dropped, after = NOTE.split(shown, maxsplit=1)
    tail = after.encode()
    head = data[: len(data) - int(dropped) - len(tail)]
    assert before in (head.decode() + "\n", head.decode())
    assert before.endswith("\n")
    assert data.endswith(tail)
    assert int(dropped) == output.dropped_bytes
    assert limit // 2 - 4 < len(head) <= limit // 2
    assert limit - limit // 2 - 4 < len(tail) <= limit - limit // 2


@given(st.binary(max_size=50))
def test_invalid_bytes_become_replacement_characters(data: bytes) -> None:
    assert collected(50, data).text() == data.decode("utf-8", "replace")


def test_an_endless_flood_takes_no_memory() -> None:
    output = BoundedOutput(1000)
    for _ in range(10_000):
        output.feed(b"y\n" * 500)
    assert output.total_bytes == 10_000_000
    assert output.dropped_bytes == 10_000_000 - 1000
    assert len(output.text()) < 1100
    assert len(output._tail) <= 1000


def test_the_note_stands_on_its_own_line() -> None:
    assert collected(4, b"a\nxxxxx\nb").text() == "a\n[... 5 bytes of output dropped ...]\n\nb"
    assert collected(4, b"aaxxxxxbb").text() == "aa\n[... 5 bytes of output dropped ...]\nbb"


def test_a_limit_below_two_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BoundedOutput(1)
