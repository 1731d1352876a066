"""What a run on the untouched environment says against tests."""

from __future__ import annotations

from typing import Literal

import pytest

from generators.stages.examine import objection
from sandbox.spec import FailureClass, GradedTest, Verdict


@pytest.mark.parametrize(
    ("outcome", "exception", "message", "reason"),
    [
        ("failed", "AssertionError", "count.txt is missing", ""),
        ("failed", "AssertionError", "curl: (6) Could not resolve host: x.invalid", "needs_network"),
        ("error", "URLError", "<urlopen error [Errno -3] Temporary failure in name resolution>", "needs_network"),
        ("error", "FileNotFoundError", "/home/agent/count.txt", "tests_error"),
        ("passed", "", "", "passes_at_start"),
    ],
)
def test_the_cause_is_told_apart(
    outcome: Literal["passed", "failed", "error"], exception: str, message: str, reason: str
) -> None:
    test = GradedTest(name="test_x", outcome=outcome, exception=exception, message=message)
    passed = outcome == "passed"
    verdict = Verdict(
        reward=float(passed), failure=FailureClass.OK if passed else FailureClass.AGENT_FAIL, tests=(test,)
    )
    assert objection(verdict)[0] == reason
