"""From tasks to trajectories with mistakes and recoveries: TermiGen's Generator-Critic protocol, executed for real."""

__all__ = ["chat", "commands", "messages", "performance", "procedural", "roles", "run", "stages", "statistics"]
