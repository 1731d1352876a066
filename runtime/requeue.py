"""Puts a dead letter back: the message its stage could not work off, as a new item.

A new item, since the old one has ended and the source has heard of it: `3` comes back as `3-r1`, then `3-r2`. What the
source makes of an item that it did not admit is its own affair; the run is open again until the item ends.
"""

from __future__ import annotations

import re

import msgspec

from runtime.routes import Routes
from runtime.store import DeadLetter, Entry, Store


async def find_letter(store: Store, run: str, item: str) -> DeadLetter | None:
    """The dead letter of an item."""
    return next((letter for letter in await store.dead_letters(run) if letter.item == item), None)


def successor(routes: Routes, letter: DeadLetter) -> Entry:
    """The entry that takes the letter's place."""
    return routes.admit(msgspec.structs.replace(routes.decode(letter.body), item=_next_name(letter.item)))


def _next_name(item: str) -> str:
    again = re.fullmatch(r"(.+)-r(\d+)", item)
    return f"{again[1]}-r{int(again[2]) + 1}" if again else f"{item}-r1"
