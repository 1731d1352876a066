"""The table by status, and Retry-After in both forms."""

from datetime import UTC, datetime

import pytest

from runtime.chat.faults import diagnose_connection, diagnose_status, retry_after_s
from runtime.errors import ChatRejected, ChatUnavailable, ContentFiltered, ContextOverflow

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 524, 529])
def test_a_passing_fault_is_retried(status):
    found = diagnose_status(status)
    assert (found.error, found.retry) == (ChatUnavailable, True)


@pytest.mark.parametrize(("status", "overloaded"), [(429, True), (503, True), (529, True), (500, False), (408, False)])
def test_only_overload_slows_the_gate(status, overloaded):
    assert diagnose_status(status).overloaded is overloaded


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_refused_request_is_final(status):
    found = diagnose_status(status, message="no such thing")
    assert (found.error, found.retry) == (ChatRejected, False)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("context_length_exceeded", "too long"),
        ("", "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
        ("", "The input (40000 tokens) is longer than the model's context length (32768 tokens)."),
        ("", "prompt is too long: 210000 tokens > 200000 maximum"),
        ("", "the request exceeds the available context size"),
    ],
)
def test_an_overlong_prompt_is_an_overflow_and_never_retried(code, message):
    found = diagnose_status(400, code=code, message=message)
    assert (found.error, found.retry) == (ContextOverflow, False)


@pytest.mark.parametrize(("code", "message"), [("content_filter", "x"), ("", "blocked by our content policy")])
def test_refused_content_is_its_own_error(code, message):
    assert diagnose_status(400, code=code, message=message).error is ContentFiltered


def test_an_empty_account_is_not_waited_for():
    assert diagnose_status(429, code="insufficient_quota").error is ChatRejected


def test_a_lost_connection_is_retried_and_says_nothing_about_load():
    found = diagnose_connection("reset")
    assert found.retry
    assert not found.overloaded


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", 0.0),
        ("", 0.0),
    ],
)
def test_retry_after_is_read_in_seconds_and_as_a_date(value, seconds):
    assert retry_after_s({"retry-after": value}, now=NOW) == seconds
