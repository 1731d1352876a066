"""Users and groups as a sandbox knows them: numbers, or names from its own /etc/passwd and /etc/group.

Read as text and in the sandbox's mount namespace; the host's accounts and name services play no part.
"""

from __future__ import annotations

import os

from .privileges import Identity

_AGENT = Identity(uid=1000, gid=1000, groups=(), home="/home/agent", name="agent")
_ROOT = Identity(uid=0, gid=0, groups=(), home="/root", name="root")
_LARGEST = 1 << 20


def identity_of(user: str) -> Identity:
    """Who `user` (`name`, `number` or either with `:group`) is. Raises: LookupError."""
    if user in ("agent", "root"):  # the same on every image, and not for an image's files to change
        return _AGENT if user == "agent" else _ROOT
    name, _, group = user.partition(":")
    row = _row("/etc/passwd", name)
    if row is None and not name.isdecimal():
        raise LookupError(f"no user {name!r} in /etc/passwd")
    uid, gid, home = (int(row[2]), int(row[3]), row[5]) if row else (int(name), 0, "/")
    groups = () if group else _memberships(row[0]) if row else ()
    return Identity(
        uid=uid, gid=_group(group) if group else gid, groups=groups, home=home, name=row[0] if row else name
    )


def numeric_owner(owner: str) -> tuple[int, int]:
    """Ids for `user[:group]`; the group defaults to the user's own. Raises: OSError."""
    try:
        identity = identity_of(owner)
    except LookupError as error:
        raise OSError(0, str(error)) from error
    return identity.uid, identity.gid


def _group(group: str) -> int:
    row = _row("/etc/group", group)
    if row is None and not group.isdecimal():
        raise LookupError(f"no group {group!r} in /etc/group")
    return int(row[2]) if row else int(group)


def _memberships(name: str) -> tuple[int, ...]:
    return tuple(int(row[2]) for row in _rows("/etc/group") if len(row) > 3 and name in row[3].split(","))


def _row(path: str, key: str) -> list[str] | None:
    return next((row for row in _rows(path) if key in (row[0], row[2])), None)


def _rows(path: str) -> list[list[str]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(descriptor, _LARGEST).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    return [row for line in text.splitlines() if len(row := line.split(":")) > 2 and row[2].isdecimal()]
