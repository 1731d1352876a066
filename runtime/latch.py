"""A state that ends the waits that were only for as long as it had not come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Latch:
    def __init__(self) -> None:
        self._waits: set[anyio.CancelScope] = set()
        self.is_set = False

    def set(self) -> None:
        """Every `until_set` block ends, those to come at their first wait."""
        self.is_set = True
        for scope in self._waits:
            scope.cancel()

    def clear(self) -> None:
        self.is_set = False

    @contextmanager
    def until_set(self) -> Iterator[None]:
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            if self.is_set:
                scope.cancel()
            try:
                yield
            finally:
                self._waits.discard(scope)
