"""Marks and records in the two byte streams of a session's shell, however they are split into chunks.

The output stream carries what commands print, and one mark where a command begins and one where it ends; the control
stream carries records. Both are told from everything else by a nonce of 128 random bits that is new for each command
and unknown to it.

Invariants:
- What stands before the begin mark or after the end mark belongs to no command and is dropped.
- Bytes that merely resemble a mark pass through as they are.
- Memory is bounded by the length of a mark and by `_RECORD_LIMIT`, whatever a command writes to either stream.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

RECORD_START = b"\x1e"
RECORD_END = b"\0"
_MARK_END = b"\x1f"
_RECORD_LIMIT = 64 * 1024


def new_nonce() -> str:
    return secrets.token_hex(16)


def mark(nonce: str) -> bytes:
    """The bytes of a mark. Short enough to be written in one piece by any shell."""
    return RECORD_START + nonce.encode() + _MARK_END


class OutputWindow:
    """Passes on what stands between a begin mark and the first of several end marks."""

    def __init__(self, begin: bytes, ends: Sequence[bytes]) -> None:
        self._begin, self._ends = begin, tuple(ends)
        self._begun = False
        self._ended = False
        self._held = b""

    @property
    def begun(self) -> bool:
        return self._begun

    @property
    def ended(self) -> bool:
        return self._ended

    def feed(self, chunk: bytes) -> bytes:
        """The part of `chunk` (and of what was held back) that is the command's own output."""
        if self._ended:
            return b""
        data = self._held + chunk
        found, at, length = self._first_mark(data)
        if found is None:
            keep = _possible_mark_start(data, self._marks())
            self._held = data[keep:]
            return data[:keep] if self._begun else b""
        self._held = b""
        before = data[:at] if self._begun else b""
        if found != self._begin:
            self._ended = True
            return before
        self._begun = True
        return before + self.feed(data[at + length :])

    def close(self) -> None:
        """No more will come: what was held back was a mark cut off by the end."""
        self._ended, self._held = True, b""

    def _marks(self) -> tuple[bytes, ...]:
        return self._ends if self._begun else (self._begin, *self._ends)

    def _first_mark(self, data: bytes) -> tuple[bytes | None, int, int]:
        places = [(at, sought) for sought in self._marks() if (at := data.find(sought)) >= 0]
        if not places:
            return None, 0, 0
        at, sought = min(places)
        return sought, at, len(sought)


def _possible_mark_start(data: bytes, marks: Sequence[bytes]) -> int:
    """Where in `data` the longest end lies that a mark might begin with; its length when there is none."""
    longest = max(map(len, marks)) - 1
    at = data.find(RECORD_START, max(0, len(data) - longest))
    while at >= 0:
        if any(sought.startswith(data[at:]) for sought in marks):
            return at
        at = data.find(RECORD_START, at + 1)
    return len(data)


class RecordReader:
    """Takes the control stream apart into records: `RECORD_START nonce SPACE kind SPACE rest NUL`."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, chunk: bytes) -> list[tuple[str, str, str]]:
        """The records (nonce, kind, rest) that `chunk` completes. What is no record is dropped."""
        *complete, self._pending = (self._pending + chunk).split(RECORD_END)
        if len(self._pending) > _RECORD_LIMIT:
            self._pending = b""
        return [record for piece in complete if (record := _parse(piece)) is not None]


def _parse(piece: bytes) -> tuple[str, str, str] | None:
    _, start, body = piece.rpartition(RECORD_START)
    fields = body.decode("utf-8", "surrogateescape").split(" ", 2)
    if not start or len(fields) != 3:
        return None
    return fields[0], fields[1], fields[2]
