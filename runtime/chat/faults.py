"""What a failed try means: the table by status, and the wait that the server asks for.

Invariants:
- Pure: status, code, message and headers in, a `Diagnosis` out. The client retries what `retry` marks, and only that.
- A prompt that does not fit, a refused content, a wrong key, model or request are final at once: another try gives the
  same.
- `overloaded` marks what the concurrency controller must answer with fewer calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from runtime.errors import ChatError, ChatRejected, ChatUnavailable, ContentFiltered, ContextOverflow

RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""The 4xx that pass: time-out, conflict, too early, too many. Every 5xx is retried as well."""
OVERLOAD_STATUS = frozenset({429, 503, 529})

_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|prompt is too long|too many (input |prompt )?tokens",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _](filter|policy|management)", re.IGNORECASE)
_OUT_OF_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What one failed try means."""

    error: type[ChatError]
    reason: str
    status: int | None = None
    retry: bool = False
    overloaded: bool = False
    retry_after_s: float = 0.0


def diagnose_status(
    status: int,
    *,
    code: str = "",
    message: str = "",
    headers: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> Diagnosis:
    """Read an HTTP error. `code` and `message` are those of the body, as far as it has any."""
    reason = message.strip()[:500] or f"HTTP {status}"
    final = _final_error(status, code, message)
    if final is not None:
        return Diagnosis(error=final, reason=reason, status=status)
    return Diagnosis(
        error=ChatUnavailable,
        reason=reason,
        status=status,
        retry=True,
        overloaded=status in OVERLOAD_STATUS,
        retry_after_s=retry_after_s(headers or {}, now=now or datetime.now(UTC)),
    )


def _final_error(status: int, code: str, message: str) -> type[ChatError] | None:
    if status in (400, 413, 422) and _OVERFLOW.search(f"{code} {message}"):
        return ContextOverflow
    if status in (400, 403) and _FILTERED.search(f"{code} {message}"):
        return ContentFiltered
    if code in _OUT_OF_MONEY:
        return ChatRejected
    return None if status in RETRIED_STATUS or status >= 500 else ChatRejected


def diagnose_connection(reason: str) -> Diagnosis:
    """No usable answer arrived: refused, reset, cut in the middle, timed out, unreadable."""
    return Diagnosis(error=ChatUnavailable, reason=reason, retry=True)


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float:
    """Seconds that `Retry-After` asks for, in either of its forms; 0 when absent or unreadable."""
    value = headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())
