"""What travels between the stages of synthesis. An item is one trajectory: a task and the number of a repeat."""

from __future__ import annotations

from runtime.stage import Message


class Planned(Message, frozen=True, kw_only=True, tag=True):
    """One trajectory that is to be made."""

    directory: str
    """Absolute path of the task."""
    repeat: int


class Opened(Message, frozen=True, kw_only=True, tag=True):
    """A trajectory that is to be made, with its task: all that a machine needs which does not have the directory."""

    name: str
    """Of the task."""
    task: bytes
    """As `runtime.task.pack_task` writes it."""
    repeat: int


class Enacted(Message, frozen=True, kw_only=True, tag=True):
    """A trajectory with its verdict."""

    trajectory: bytes
    """As `runtime.trajectory.encode` writes it."""


class Filed(Message, frozen=True, kw_only=True, tag=True):
    """The trajectory is in the output directory."""

    reward: float
