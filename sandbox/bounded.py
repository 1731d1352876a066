"""Output of any length, kept in bounded memory: its head, its tail, and how much fell out between them.

Invariants:
- At most `limit` bytes are kept between calls to `feed` (twice the tail while trimming is put off), whatever comes.
- What is kept depends on the bytes alone and not on how they were split into chunks.
- Nothing is lost while the total is within the limit; beyond it, head + dropped + tail = total, to the byte.
- A cut never splits a UTF-8 character: the bytes of a split one count as dropped.
"""

from __future__ import annotations


class BoundedOutput:
    """Collects bytes; renders head, note and tail."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes kept, half of it for the head. Raises: ValueError when below 2."""
        if limit < 2:
            raise ValueError(f"an output limit is at least 2 bytes, not {limit}")
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @property
    def total_bytes(self) -> int:
        return self._total

    @property
    def dropped_bytes(self) -> int:
        head, tail = self._kept()
        return self._total - len(head) - len(tail)

    def feed(self, data: bytes) -> None:
        """Take the next chunk."""
        self._total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_limit :]
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def text(self) -> str:
        """What was kept, decoded with replacement characters; a one-line note stands where bytes were dropped."""
        head, tail = self._kept()
        dropped = self._total - len(head) - len(tail)
        if not dropped:
            return (head + tail).decode("utf-8", "replace")
        start, end = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
        line_break = "" if start.endswith("\n") else "\n"
        return f"{start}{line_break}[... {dropped} bytes of output dropped ...]\n{end}"

    def _kept(self) -> tuple[bytes, bytes]:
        tail = bytes(self._tail[-self._tail_limit :])
        if len(self._head) + len(tail) == self._total:
            return bytes(self._head), tail
        return _without_split_end(bytes(self._head)), _without_split_start(tail)


def _without_split_end(data: bytes) -> bytes:
    """`data` less an unfinished UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        return data[:-back] if back < _character_length(byte) else data
    return data


def _without_split_start(data: bytes) -> bytes:
    """`data` less continuation bytes, at most three, whose character began before it."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _character_length(lead: int) -> int:
    """Bytes of the UTF-8 character that begins with `lead`; 1 for ASCII and for what begins none."""
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 1
