"""The bus that a URL names: empty for the one in memory, `nats://host:port` for a server."""

from __future__ import annotations

from runtime.bus.memory import MemoryBus
from runtime.bus.protocol import Bus
from runtime.errors import UserError


def open_bus(url: str, *, prefix: str = "termloom") -> Bus:
    """Not entered yet. Raises: UserError for a scheme that is no bus."""
    if not url:
        return MemoryBus()
    if url.startswith(("nats://", "tls://")):
        from runtime.bus.nats import NatsBus

        return NatsBus(url, prefix=prefix)
    raise UserError(f"bus {url}", "is no bus address", "Write nats://HOST:PORT, or leave it empty for memory")
