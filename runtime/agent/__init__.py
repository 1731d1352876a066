"""The agent: think, one command, observe, until done or a limit."""
