"""Where a daemon is found: one a state directory, its address and token in a file that only its user reads.

The lock is the kernel's and goes with the process, so a killed daemon bars nobody.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runtime.errors import UserError
from sandbox.owner import owner_is_alive, owner_token


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a daemon."""

    url: str
    """`http://HOST:PORT` or `unix:PATH`."""
    token: str
    owner: str


def directory(state: Path) -> Path:
    return state / "daemon"


def find_daemon(state: Path) -> Address | None:
    """The address of the live daemon of a state directory."""
    try:
        address = msgspec.json.decode((directory(state) / "address.json").read_bytes(), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None
    return address if owner_is_alive(address.owner) else None


def name_of(state: Path) -> str:
    """What the daemon of this state directory is called among those of all machines; the first call decides.

    Raises: UserError.
    """
    path = directory(state) / "name"
    try:
        if not path.exists():
            fresh = path.with_suffix(".partial")
            with fresh.open("w") as file:
                file.write(secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        return path.read_text()
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), "Choose another state directory") from None


@contextmanager
def sole_daemon(state: Path) -> Iterator[None]:
    """Be the only daemon of this state directory within the block. Raises: UserError."""
    place = directory(state)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(str(place), error.strerror or str(error), "Choose another state directory") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            str(state), "another daemon works there", "Stop it, or choose another state directory"
        ) from None
    finally:
        os.close(lock)


@contextmanager
def announced(state: Path, *, url: str, token: str) -> Iterator[None]:
    """Let commands find this daemon within the block."""
    path = directory(state) / "address.json"
    fresh = path.with_suffix(".partial")
    fresh.touch(mode=0o600)
    fresh.write_bytes(msgspec.json.encode(Address(url=url, token=token, owner=owner_token())))
    fresh.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
