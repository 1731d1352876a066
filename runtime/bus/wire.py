"""What a bus between machines sends, and what a queue's parts are called there."""

from __future__ import annotations

import hashlib
import re

import msgspec


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What travels. An absent body lies in the object store under the key's digest."""

    key: str
    at: float
    body: bytes | None


class Buried(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as kept."""

    envelope: Envelope
    reason: str
    attempts: int


encode = msgspec.msgpack.Encoder().encode
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decode_buried = msgspec.msgpack.Decoder(Buried).decode


class Names:
    """What a queue's parts are called at the server."""

    def __init__(self, prefix: str, queue: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix + queue):
            raise ValueError(f"a queue's name is letters, digits, '-' and '_': {prefix!r}, {queue!r}")
        self.stream, self.dead_stream = f"{prefix}-{queue}", f"{prefix}-{queue}-dead"
        self.delayed_stream = f"{prefix}-{queue}-delayed"
        self.bodies = f"{prefix}-{queue}-bodies"
        self.room, self.full = f"{prefix}-room.{queue}", f"{prefix}-full.{queue}"
        self._subject, self._dead = f"{prefix}.{queue}", f"{prefix}-dead.{queue}"
        self._delayed = f"{prefix}-delayed.{queue}"

    def subject(self, token: str) -> str:
        return f"{self._subject}.{token}"

    def dead_subject(self, token: str) -> str:
        return f"{self._dead}.{token}"

    def delayed_subject(self, token: str, due_ms: str) -> str:
        return f"{self._delayed}.{token}.{due_ms}"


def due_of(subject: str) -> float:
    """When a delay ends, in seconds since the epoch, from the subject that marks it."""
    return int(subject.rpartition(".")[2]) / 1000


def token_of(key: str) -> str:
    """A key may hold anything; a subject's token may not."""
    return hashlib.sha256(key.encode()).hexdigest()
