"""The agent: think, one command, observe, until done or a limit is reached."""

__all__ = ["episode", "observation", "parser", "policy", "scripted", "settings"]
