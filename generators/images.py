"""Which items stand on which built images: an image goes with the last item that needs it.

So the disk holds the images of what is in work, however many tasks a run makes. The base is never removed (engines see
to that), and an image that is wanted after all, by a redelivered or resumed item, is built again. Processes know
nothing of each other's items: an engine leaves an image that a sandbox stands on, and one that was removed between two
sandboxes is built again as well.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress

import anyio

from sandbox.engine import Engine
from sandbox.errors import SandboxError

_CLEAN_S = 60.0


class HeldImages:
    """The images that the items of one process hold.

    Args:
        most: so many items hold images at once, for a process that is not told when they end; None: all that do.
    """

    def __init__(self, *, most: int | None = None) -> None:
        self._most = most
        self._holders: defaultdict[str, set[str]] = defaultdict(set)
        self._items: dict[str, None] = {}
        """Those that hold an image; the last is the one that took an image last."""

    def hold(self, image: str, item: str) -> None:
        """The image is needed until the item ends."""
        self._holders[image].add(item)
        self._items.pop(item, None)
        self._items[item] = None

    def give_up(self, item: str) -> list[str]:
        """The item is at its end: the images that nobody else holds."""
        self._items.pop(item, None)
        for holders in self._holders.values():
            holders.discard(item)
        free = [image for image, holders in self._holders.items() if not holders]
        for image in free:
            del self._holders[image]
        return free

    async def release(self, engine: Engine, item: str) -> None:
        """Remove the images of an item that is at its end."""
        await _remove(engine, self.give_up(item))

    async def release_beyond(self, engine: Engine) -> None:
        """Remove the images of the items beyond the most that may hold some, those that took none for longest first."""
        while self._most is not None and len(self._items) > self._most:
            await self.release(engine, next(iter(self._items)))

    async def release_all(self, engine: Engine) -> None:
        """At the end of a run: the images of items that were given up, or are left to a resumed run."""
        images = list(self._holders)
        self._holders.clear()
        self._items.clear()
        await _remove(engine, images)


async def _remove(engine: Engine, images: list[str]) -> None:
    """Shielded: nobody knows of these images any more."""
    with anyio.move_on_after(_CLEAN_S, shield=True):
        for image in images:
            with suppress(SandboxError):  # it stays as what it is: a cache entry
                await engine.remove_image(image)
