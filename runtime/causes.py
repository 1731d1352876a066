"""The one exception worth telling, out of the groups in which task groups wrap it."""

from __future__ import annotations


def first_cause(error: BaseException) -> BaseException:
    """The first exception inside nested groups that is no group itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
