"""Version 1 of the observation, to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.agent.observation import observe
from runtime.chat.messages import estimate_tokens
from sandbox.spec import CommandResult


def show(result: CommandResult, max_tokens: int = 1000) -> str:
    return observe(result, max_tokens=max_tokens, count_tokens=estimate_tokens, timeout_s=30.0)


def result(output: str = "", exit_code: int | None = 0, **fields) -> CommandResult:
    return CommandResult(output=output, exit_code=exit_code, **{"total_bytes": len(output.encode())} | fields)


@pytest.mark.parametrize(
    ("came", "shown"),
    [
        (result("hi\n"), "exit code: 0\noutput:\nhi\n"),
        (result(exit_code=3), "exit code: 3\noutput: (none)"),
        (
            result("part", None, timed_out=True),
            "exit code: none (timed out after 30 s and was stopped)\noutput:\npart",
        ),
        (
            result("", None, shell_restarted=True),
            "exit code: none (it did not end by itself)\n"
            "note: the shell was restarted; its directory, variables and background jobs are gone\noutput: (none)",
        ),
        (
            result("head\n[tail]", total_bytes=5000, dropped_bytes=4990),
            "exit code: 0\nnote: 10 of 5,000 bytes of output are shown, head and tail\noutput:\nhead\n[tail]",
        ),
    ],
)
def test_the_format(came, shown):
    assert show(came) == shown


def test_long_output_keeps_head_and_tail_and_tells_true_totals():
    output = "".join(f"line {n}\n" for n in range(1000))
    shown = show(result(output, total_bytes=1_000_000, dropped_bytes=1_000_000 - len(output)), max_tokens=100)
    assert "of 1,000,000 bytes of output are shown" in shown
    assert "output:\nline 0\n" in shown
    assert shown.endswith("line 999\n")
    assert "bytes left out here" in shown


MIXED = st.lists(st.sampled_from(["word ", "\n", "\U0001f642" * 20, "x" * 50]), max_size=300).map("".join)


@given(MIXED, st.integers(16, 400))
def test_output_stays_within_the_budget_wherever_its_tokens_are(output, max_tokens):
    shown = show(result(output), max_tokens)
    if estimate_tokens(output) <= max_tokens:
        assert shown == f"exit code: 0\noutput:{chr(10) + output if output.strip() else ' (none)'}"
    else:
        text = shown.partition("output:\n")[2]
        head, _, rest = text.partition("\n[... ")
        assert estimate_tokens(head + rest.partition("...]\n")[2]) <= max_tokens
