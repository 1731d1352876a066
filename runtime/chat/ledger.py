"""The ledger of model calls: what was paid for once is never paid for again.

Invariants:
- A completion is kept under its request's key as soon as it is here, whatever it is worth: who wants another draw asks
  with another nonce. Answers that the server aborted are not kept.
- The client writes the entry before it hands the completion out, also when it is being cancelled.
"""

from __future__ import annotations

from typing import Protocol

from runtime.chat.messages import Completion


class CallLedger(Protocol):
    """Completions by call key. Implementations outlive the process where resuming matters."""

    async def get(self, key: str) -> Completion | None: ...

    async def put(self, key: str, completion: Completion, *, purpose: str, cost_usd: float) -> None:
        """Keep `completion`. Putting the same key again changes nothing."""
        ...


class MemoryLedger:
    """A ledger that lives as long as the process."""

    def __init__(self) -> None:
        self.cost_usd = 0.0
        self._entries: dict[str, Completion] = {}

    async def get(self, key: str) -> Completion | None:
        return self._entries.get(key)

    async def put(self, key: str, completion: Completion, *, purpose: str, cost_usd: float) -> None:
        if self._entries.setdefault(key, completion) is completion:
            self.cost_usd += cost_usd

    def __len__(self) -> int:
        return len(self._entries)
