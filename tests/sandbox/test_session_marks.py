"""Marks and records survive any split of the streams, and nothing resembling them is taken for one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sandbox.shell_marks import OutputWindow, RecordReader, mark, new_nonce

BEGIN, END, EXIT = mark("b" * 32), mark("e" * 32), mark("x" * 32)
NEAR_MARKS = st.lists(
    st.one_of(
        st.sampled_from([b"\x1e", b"\x1f", BEGIN[:-1], END[:20], END[1:], EXIT[:-1], mark("f" * 32)]),
        st.binary(max_size=5),
    ),
    max_size=8,
).map(b"".join)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(NEAR_MARKS, NEAR_MARKS, NEAR_MARKS, st.sampled_from([END, EXIT]), st.lists(st.integers(0, 500), max_size=6))
def test_what_stands_between_the_marks_is_the_output(
    before: bytes, inside: bytes, after: bytes, end: bytes, cuts: list[int]
) -> None:
    if any(m in part for m in (BEGIN, END, EXIT) for part in (before + BEGIN[:-1], inside + end[:-1])):
        return
    window = OutputWindow(BEGIN, (END, EXIT))
    seen = b"".join(map(window.feed, pieces(before + BEGIN + inside + end + after, cuts)))
    assert (seen, window.begun, window.ended) == (inside, True, True)


def test_split_at_every_byte() -> None:
    data = b"late" + BEGIN + b"out\x1eput" + END + b"later"
    for cut in range(len(data)):
        window = OutputWindow(BEGIN, (END,))
        assert window.feed(data[:cut]) + window.feed(data[cut:]) == b"out\x1eput"


def test_output_is_passed_on_at_once_unless_it_may_begin_a_mark() -> None:
    window = OutputWindow(BEGIN, (END,))
    window.feed(BEGIN)
    assert window.feed(b"abc") == b"abc"
    assert window.feed(b"abc" + END[:5]) == b"abc"
    assert window.feed(b"d") == END[:5] + b"d"


def test_an_end_without_a_begin_is_a_command_that_never_ran() -> None:
    window = OutputWindow(BEGIN, (END,))
    assert window.feed(b"noise" + END) == b""
    assert window.ended
    assert not window.begun


@given(st.lists(st.integers(0, 500), max_size=6))
def test_records_are_found_among_junk(cuts: list[int]) -> None:
    stream = b"junk\x1e\x1eaa end 0 /tmp/a b\0more\0\x1ebb begin 1.00 2.00\n x\0\x1ehalf"
    reader = RecordReader()
    found = [record for piece in pieces(stream, cuts) for record in reader.feed(piece)]
    assert found == [("aa", "end", "0 /tmp/a b"), ("bb", "begin", "1.00 2.00\n x")]


def test_junk_without_end_takes_no_memory() -> None:
    reader = RecordReader()
    for _ in range(100):
        assert reader.feed(b"\x1ex" * 5000) == []
    assert len(reader._pending) <= 64 * 1024 + 10_000
    assert reader.feed(b"\0\x1eaa end 0 /\0")[-1] == ("aa", "end", "0 /")


def test_nonces_differ() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
