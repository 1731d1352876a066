"""One SQLite file: connection, transactions, numbered migrations, and its failures in our words.

Invariants:
- WAL with synchronous=NORMAL: a killed process loses no committed transaction; a power cut may lose the last ones,
  never the file.
- A transaction is one function, run to its end in one worker thread: cancelling its caller never leaves half of one.
- Who only reads neither takes the write lock nor waits for it; nor does who opens a file that is up to date.
- Migrations run in order, each in its own transaction; a file of a newer schema is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from runtime.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")

_BUSY_S = 5.0
_Begin = Literal["BEGIN", "BEGIN IMMEDIATE"]


class Database:
    """Owns the connection. Every use goes through `transact` or `read`, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = anyio.CapacityLimiter(1)

    async def open(self) -> None:
        """Connect and migrate. Raises: StoreError."""
        await anyio.to_thread.run_sync(self._open, limiter=self._turn)

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._close, limiter=self._turn)

    async def transact(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(connection, ...)` as one transaction. Raises: StoreError, and whatever the function raises."""
        return await self._carry_out("BEGIN IMMEDIATE", lambda connection: function(connection, *args, **kwargs))

    async def read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `transact`, for a function that changes nothing: it sees the file as of one moment."""
        return await self._carry_out("BEGIN", lambda connection: function(connection, *args, **kwargs))

    async def _carry_out(self, begin: _Begin, function: Callable[[sqlite3.Connection], T]) -> T:
        def work() -> T:
            with self._explained(), self._transaction(begin) as connection:
                return function(connection)

        return await anyio.to_thread.run_sync(work, limiter=self._turn)

    def _open(self) -> None:
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._connection = connection
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
                self._migrate(connection)
            except BaseException:
                self._close()
                raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _migrate(self, connection: sqlite3.Connection) -> None:
        migrations = _migrations()
        newest = len(migrations)
        with self._transaction("BEGIN"):
            current = _version(connection)
        while current < newest:
            with self._transaction("BEGIN IMMEDIATE"):
                connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
                current = _version(connection)  # another process may have been quicker
                if current < newest:
                    current += 1
                    for statement in _statements(migrations[current - 1]):
                        connection.execute(statement)
                    connection.execute("INSERT INTO schema_version VALUES (?)", (current,))
        if current > newest:
            raise StoreError(
                str(self.path), f"its schema is version {current}, this program knows {newest}", "Use a newer termloom"
            )

    @contextmanager
    def _transaction(self, begin: _Begin) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        if connection is None:
            raise StoreError(str(self.path), "it is not open", "Use it inside its context manager")
        connection.execute(begin)
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk may have rolled back already
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's failures and the file system's as StoreError; a violated constraint is a bug and stays itself."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error), _remedy(error)) from error
        except OSError as error:
            raise StoreError(str(self.path), error.strerror or str(error), "Choose another state directory") from error


def _remedy(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return "Free space on that disk, then resume the run"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "Another process holds the store: end it, or choose another state directory"
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return "Make the directory writable, or choose another state directory"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return "Move the file away and start a new run"
    return "Check the disk, then resume the run"


def _version(connection: sqlite3.Connection) -> int:
    """Number of the newest migration that was applied; 0 in a file that is new."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'").fetchone():
        return 0
    (newest,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    return int(newest or 0)


def _migrations() -> list[str]:
    """The numbered SQL files, in order."""
    files = sorted(f.name for f in resources.files("runtime.migrations").iterdir() if f.name.endswith(".sql"))
    return [resources.files("runtime.migrations").joinpath(name).read_text() for name in files]


def _statements(script: str) -> Iterator[str]:
    """A script's statements one by one: `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
