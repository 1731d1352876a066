"""Version 1 of the action parser, by example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.parser import Command, Done, Malformed, correction, parse_action


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("<think>look</think>\n<command>ls -la</command>", "ls -la"),
        ("<command>first</command> or <command>last</command>", "last"),
        ("<think><command>no</command></think><command>yes</command>", "yes"),
        ("perhaps <command>no</command></think><command>yes</command>", "yes"),
        ("<command>\ncat <<'E'\n\tx\nE\n</command>", "cat <<'E'\n\tx\nE"),
        ("<command>\n```bash\nls\npwd\n```\n</command>", "ls\npwd"),
        ("<command>  ls  </command>", "  ls  "),
        ("<command>ls</command>\n<action>done</action>", "ls"),
        ("<command>echo '</think>' '<think>'</command>", "echo '</think>' '<think>'"),
        ("The task is complete. <command>ls</command>", "ls"),
    ],
)
def test_a_command(text, command):
    action = parse_action(text)
    assert isinstance(action, Command)
    assert action.command == command


@pytest.mark.parametrize(
    "text",
    [
        "<action>done</action>",
        "<think>ok</think><action> DONE </action>",
        "<command>done</command>",
        "<command>\ndone\n</command>",
    ],
)
def test_done(text):
    assert isinstance(parse_action(text), Done)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no_action"),
        ("The task is complete.", "no_action"),
        ("<think><action>done</action></think>", "no_action"),
        ("<think>never closed <command>ls</command>", "no_action"),
        ("<action>give up</action>", "no_action"),
        ("<command>rm -rf /tmp/x", "not_closed"),
        ("<command>ls</command> no, <command>rm -rf /tmp", "not_closed"),
        ("<command>  \n</command>", "empty"),
        ("<command/>", "empty"),
        ("<command>a\0b</command>", "nul_byte"),
    ],
)
def test_malformed(text, problem):
    action = parse_action(text)
    assert isinstance(action, Malformed)
    assert action.problem == problem


def test_the_thought_is_reasoning_and_prose():
    assert parse_action("<think>a</think>b\n<command>ls</command>\nc").thought == "a\nb\nc"


def test_the_correction_names_problem_limit_and_forms():
    text = correction("not_closed", truncated_at=2048)
    assert "not closed" in text
    assert "2048" in text
    assert "<action>done</action>" in text


@given(st.text(st.characters(exclude_characters="\0<>`\r\n", exclude_categories=("Cs",)), min_size=1))
def test_any_plain_command_is_taken_to_the_letter(command):
    expected = Command(command) if command.strip() and command.strip() != "done" else None
    action = parse_action(f"<think>x</think><command>{command}</command>")
    if expected:
        assert isinstance(action, Command)
        assert action.command == command
    else:
        assert not isinstance(action, Command)
