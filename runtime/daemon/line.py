"""What a daemon and the process of one of its jobs say to each other: one JSON object a line, over a socket pair."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from runtime.chat.notes import CallNote
from runtime.events import RunEvent

_MOST_BYTES = 64 << 20


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all that is said."""


class Begin(Said, frozen=True, kw_only=True):
    """First of all, to the process: what it has to do. Holds the secrets that it needs."""

    kind: str
    settings: dict[str, Any]
    options: dict[str, Any]
    begun: bool


class Take(Said, frozen=True, kw_only=True):
    """To the daemon: a place in a limit is wanted."""

    claim: int
    limit: str
    item: str


class Granted(Said, frozen=True, kw_only=True):
    """To the process: the place is its own, until it gives it back."""

    claim: int


class Give(Said, frozen=True, kw_only=True):
    """To the daemon: the place is not needed any more, or not waited for."""

    claim: int


class Happened(Said, frozen=True, kw_only=True):
    event: RunEvent


class Called(Said, frozen=True, kw_only=True):
    """A model was called."""

    note: CallNote


class Announced(Said, frozen=True, kw_only=True):
    """To the daemon: the work has begun and can be drained; with `steered`, told all the rest below."""

    steered: bool


class Drain(Said, frozen=True, kw_only=True):
    reason: str


class Pause(Said, frozen=True, kw_only=True):
    on: bool


class CancelItem(Said, frozen=True, kw_only=True):
    item: str


class Requeue(Said, frozen=True, kw_only=True):
    item: str


class Requeued(Said, frozen=True, kw_only=True):
    """To the daemon: the item in the letter's place; None where there is no such letter."""

    item: str
    fresh: str | None


class Result(Said, frozen=True, kw_only=True):
    """Last of all, to the daemon: what the job came to."""

    result: dict[str, Any]


class Failure(Said, frozen=True, kw_only=True):
    """Or why it came to nothing: the message of what was foreseen, the traceback of what was not."""

    detail: str


Anything = (
    Begin
    | Take
    | Granted
    | Give
    | Happened
    | Called
    | Announced
    | Drain
    | Pause
    | CancelItem
    | Requeue
    | Requeued
    | Result
    | Failure
)
_decoder = msgspec.json.Decoder(Anything)


async def heard(stream: SocketStream) -> AsyncIterator[Anything]:
    """What the other side says, until it is gone."""
    lines = BufferedByteReceiveStream(stream)
    while True:
        try:
            line = await lines.receive_until(b"\n", _MOST_BYTES)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            return
        yield _decoder.decode(line)


async def say(stream: SocketStream, said: Said) -> None:
    """Raises: BrokenResourceError when nobody is there any more."""
    await stream.send(msgspec.json.encode(said) + b"\n")
