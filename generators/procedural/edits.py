"""Steps that change a file in place with sed, and the ways in which that goes wrong. All scripts come quoted for the shell."""

from __future__ import annotations

from generators.messages import ErrorType, Mistake
from generators.procedural.steps import slip


def edit(file: str, script: str) -> str:
    """Edit the file in place."""
    return f"sed -i {script} {file}"


def botched(kind: ErrorType, file: str, script: str, reason: str) -> Mistake:
    """A wrong edit; the copy that sed keeps repairs it."""
    return slip(kind, f"sed -i.bak {script} {file}", reason, f"mv {file}.bak {file}")


def beside(file: str, script: str) -> Mistake:
    """The right edit, but of a copy."""
    reason = "I leave the original alone and put the changed version beside it."
    return slip("requirement_violation", f"sed {script} {file} > {file}.new", reason, f"rm {file}.new")


def unsaved(file: str, script: str) -> Mistake:
    """The right edit, but only on the screen."""
    return slip("verification_failure", f"sed {script} {file}", "The output shows the file as it should be.")
