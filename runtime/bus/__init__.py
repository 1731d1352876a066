"""The bus: see `runtime.bus.protocol` for its contract, `docs/design/bus.md` for why."""

from runtime.bus.memory import MemoryBus
from runtime.bus.protocol import Bus, DeadLetter, Delivery, QueueOptions, QueueState

__all__ = ["Bus", "DeadLetter", "Delivery", "MemoryBus", "QueueOptions", "QueueState"]
