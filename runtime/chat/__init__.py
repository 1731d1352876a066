"""Talking to models: client, ledger, budget, concurrency, prompts, parsing, and the scripted server to test against.

Import from the modules: `messages` is light, `client` and `scripted` bring their third parties along.
"""

__all__ = [
    "answer",
    "budget",
    "client",
    "concurrency",
    "faults",
    "ledger",
    "messages",
    "notes",
    "parse",
    "prompts",
    "script",
    "scripted",
    "tally",
]
