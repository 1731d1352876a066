"""What others wrote, made fit for files and screens."""

from __future__ import annotations

import pytest

from runtime.plain_text import encodable, printable


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert encodable("a\ud83d\u00e4") == "a?\u00e4"


@pytest.mark.parametrize("steering", ["\x1b[2J", "\x1b]0;title\x07", "\x9b2J", "\r", "\x7f", "\u202e", "\ud83d"])
def test_what_steers_a_terminal_is_not_printed(steering: str):
    shown = printable(f"a{steering}b")
    assert shown.isprintable()
    assert shown[0] + shown[-1] == "ab"


def test_lines_tabs_and_letters_of_all_scripts_stay():
    assert printable("a\tb\n\u00e4\u6f22\U0001f600") == "a\tb\n\u00e4\u6f22\U0001f600"
