"""What the machine refuses, told apart from bugs.

A full disk or a missing right can show up wherever something is written. The user alone can mend it; nothing that was
done is lost by it. Every other OSError is a bug of ours, and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.errors import MachineRefused

_SPACE = "Free space there, then resume"
_RIGHTS = "Choose a directory that this user may write"
_HANDLES = "Raise the limit on open files (ulimit -n), or lower the settings under limits"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
    errno.ENOMEM: "Free memory, or lower the settings under limits",
    errno.EIO: "Check the disk",
    errno.EPIPE: "Its reader has gone; what is unfinished can be resumed",
}


def refusal(error: BaseException) -> MachineRefused | None:
    """The fault of the machine that `error` tells of, if it tells of one."""
    if not isinstance(error, OSError) or error.errno not in _REMEDIES:
        return None
    where = str(error.filename) if error.filename else "output"
    return MachineRefused(where, error.strerror or str(error), _REMEDIES[error.errno])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in an OSError that does not: a full disk is told without one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
