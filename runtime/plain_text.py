"""Text that others wrote (models, containers, tasks), made fit for where it goes."""

from __future__ import annotations


def encodable(text: str) -> str:
    """Can be written as UTF-8: half a surrogate pair, as a cut token or `\\ud83d` leaves it, becomes `?`."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """Does not steer the terminal that it is shown on. Lines and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
