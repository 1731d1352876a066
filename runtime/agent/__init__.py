"""The agent: think, one command, observe, until done or a limit is reached."""

__all__ = [
    "episode",
    "kind",
    "memory",
    "minimal",
    "observation",
    "parser",
    "policy",
    "scripted",
    "settings",
    "terminal",
    "terminus",
]
