"""The two test modules of a task as suites, and their reports in words."""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.spec import FailureClass, File, GradedTest, Suite, Verdict

TIMEOUT_S = 120.0
"""For a whole module. Sound modules end within a second; what takes minutes now would time out later."""

_MESSAGE_CHARS = 400
_REPORT_TESTS = 20


def initial_suite(source: str) -> Suite:
    """Tests of the starting state."""
    return Suite(files=(File(path="test_initial_state.py", data=source.encode()),), timeout_s=TIMEOUT_S)


def final_suite(source: str, inventory: tuple[str, ...] | None = None) -> Suite:
    """Tests of the end state; all of `inventory` must be there once it is known."""
    return Suite(files=(File(path="test_outputs.py", data=source.encode()),), inventory=inventory, timeout_s=TIMEOUT_S)


def named(tests: Iterable[GradedTest], *outcomes: str) -> tuple[str, ...]:
    """Sorted names of the tests that ended so."""
    return tuple(sorted(test.name for test in tests if test.outcome in outcomes))


def report(verdict: Verdict) -> str:
    """What a player is told about a grading run."""
    if verdict.failure is FailureClass.GRADE_TIMEOUT:
        return f"The tests did not end within {TIMEOUT_S:g} s."
    bad = [test for test in verdict.tests if test.outcome != "passed"]
    lines = [f"{len(verdict.tests) - len(bad)} of {len(verdict.tests)} tests passed."]
    lines += [
        f"{test.name}: {test.outcome}: {test.exception}: {test.message[:_MESSAGE_CHARS]}"
        for test in bad[:_REPORT_TESTS]
    ]
    return "\n".join([*lines, verdict.detail] if verdict.detail else lines)
