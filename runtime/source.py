"""Where a run's items come from.

A source decides; it never waits, reads a clock or draws unseeded: given the same messages in the same order it
admits the same items. That is how a resumed run gets its source back: the runner replays what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtime.stage import Message


class Source(Protocol):
    """Each message it returns goes to the stage that takes its type."""

    def start(self) -> Sequence[Message]:
        """What the run begins with. Called once, before anything else."""
        ...

    def settled(self, message: Message) -> Sequence[Message]:
        """An item came to its end; what is admitted because of it.

        Called exactly once for each terminal message, in the order of recording, inside the transaction that records it
        (in the store's thread, never twice at once).
        """
        ...


class Once:
    """Admits a fixed list of messages and nothing more."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = tuple(messages)

    def start(self) -> Sequence[Message]:
        return self._messages

    def settled(self, message: Message) -> Sequence[Message]:
        return ()
