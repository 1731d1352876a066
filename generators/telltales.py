"""What a failed verdict gives away about its cause, from the words of its tests."""

from __future__ import annotations

import re

from sandbox.spec import Verdict

_NETWORK = re.compile(
    r"temporary failure in name resolution|name or service not known|could not resolve|unable to resolve host"
    r"|network is unreachable|no address associated with hostname|getaddrinfo|gaierror|EAI_AGAIN"
    r"|failed to establish a new connection",
    re.IGNORECASE,
)


def network_wanted(verdict: Verdict) -> str:
    """The words of a resolver or socket that found no network, empty when there are none: grading has none."""
    bad = [test for test in verdict.tests if test.outcome != "passed"]
    for text in (*(f"{test.exception} {test.message}" for test in bad), verdict.detail):
        if match := _NETWORK.search(text):
            return match[0]
    return ""
