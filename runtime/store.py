"""The store: the truth about every run. The bus is transport.

Invariants:
- One commit = one transaction: the input is done, its outputs are pending or terminal, what the source admits because
  of them is pending, the journal says so. After a kill at any moment, `pending` is exactly what is left to do.
- A commit is idempotent by (run, queue, item): the second one changes nothing and says so.
- An item is in one queue, or at its end (a unique index holds this).
- A run has one live owner; the remains of a dead one are taken over.
- The ledger keeps the first answer to a call; a redelivery or a resumed run never pays twice.
- Who only looks at a run does not disturb it: reading, opening and closing take no write lock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, Self

import anyio
import msgspec

from runtime.database import Database
from runtime.errors import ItemConflict, StoreError
from sandbox.owner import owner_is_alive, owner_token


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run as recorded."""

    run: str
    command: str
    settings: str
    """JSON, as resolved when the run was opened."""
    created: float
    state: Literal["open", "finished"]
    started: bool
    """Whether the source's first admissions are recorded."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An item in a queue, with its encoded message."""

    queue: str
    item: str
    body: bytes
    terminal: bool = False
    attempts: int = 0
    """Attempts at it that failed."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the journal."""

    item: str
    kind: str
    stage: str = ""
    detail: str = ""
    at: float = 0.0
    """Seconds since the epoch; set by the store."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One paid model call."""

    key: str
    request_digest: str
    response: bytes
    prompt_tokens: int
    completion_tokens: int
    cost: float
    attempts: int


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one item."""

    queue: str
    state: Literal["pending", "terminal"]
    attempts: int
    updated: float
    """Seconds since the epoch."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was given up, at the queue whose stage could not work it off."""

    queue: str
    item: str
    body: bytes
    reason: str
    at: float
    """Seconds since the epoch."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's items are."""

    items: int
    pending: int
    terminal: int


Settle = Callable[[Entry], Sequence[Entry]]
"""What the source admits because this entry came to its end. Called in the writer's thread, inside the transaction."""


class Store:
    """Use as an async context manager. All methods raise StoreError when the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path)
        self._owned: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._database.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            try:
                if self._owned:
                    await self._database.transact(_disown, self._owned)
            finally:
                await self._database.close()

    async def open_run(self, run: str, *, command: str, settings: str) -> Run:
        """Create a run or take an earlier one up again; its first command and settings stay.

        Raises: StoreError when another live process works on it.
        """
        opened = await self._database.transact(_open_run, run, command, settings, str(self.path))
        self._owned.add(f"run/{run}")
        return opened

    async def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return await self._database.read(_runs)

    async def start(self, run: str, entries: Sequence[Entry]) -> bool:
        """Record the source's first admissions, once. False: they were recorded before, nothing changed."""
        return await self._database.transact(_start, run, entries)

    async def commit(
        self,
        run: str,
        *,
        done: tuple[str, str],
        outputs: Sequence[Entry],
        settle: Settle,
        notes: Sequence[Note] = (),
        given_up: str = "",
    ) -> list[Entry] | None:
        """Record what came of (queue, item); returns what the source admitted.

        With `given_up`, a reason, the input is kept as a dead letter.

        None: it was done before, nothing changed.
        Raises: ItemConflict when an output's item is elsewhere already; sqlite3.IntegrityError when the source's is.
        """
        return await self._database.transact(_commit, run, done, outputs, notes, settle=settle, given_up=given_up)

    async def fail(self, run: str, *, at: tuple[str, str], note: Note) -> int:
        """Count a failed attempt at a pending (queue, item); returns how many there are."""
        return await self._database.transact(_fail, run, at, note)

    async def dead_letters(self, run: str) -> list[DeadLetter]:
        """What was given up and not requeued, oldest first."""
        return await self._database.read(_dead_letters, run)

    async def requeue(self, run: str, letter: DeadLetter, entry: Entry) -> bool:
        """Put `entry` where `letter` was; the run is open again. False: there is no such letter any more.

        Raises: ItemConflict when the entry's item exists.
        """
        return await self._database.transact(_requeue, run, letter, entry)

    async def finish(self, run: str) -> None:
        """Mark a run as finished."""
        await self._database.transact(_finish, run)

    async def pending(self, run: str) -> list[Entry]:
        """What is left to do, in the order of recording."""
        return await self._database.read(_entries, run, "pending")

    async def terminal(self, run: str) -> list[Entry]:
        """What came to its end, in the order of recording."""
        return await self._database.read(_entries, run, "terminal")

    async def items(self, run: str) -> set[str]:
        """Every item ever admitted."""
        return await self._database.read(_items, run)

    async def tally(self, run: str) -> Tally:
        return await self._database.read(_tally, run)

    async def where(self, run: str, item: str) -> Where | None:
        """The place of an item; None when the run has none of that name."""
        return await self._database.read(_where, run, item)

    async def counts(self, run: str) -> dict[tuple[str, str], int]:
        """Number of entries by (queue, state), for progress and yield."""
        return await self._database.read(_counts, run)

    async def note(self, run: str, note: Note) -> None:
        """Add one line to the journal."""
        await self._database.transact(_journal, run, [note])

    async def journal(self, run: str, *, item: str | None = None) -> list[Note]:
        """The journal of a run or of one item, oldest first."""
        return await self._database.read(_notes, run, item)

    async def call(self, key: str) -> Call | None:
        """The ledger's entry for a call."""
        return await self._database.read(_call, key)

    async def record_call(self, call: Call) -> None:
        """Keep a call; one already kept under this key stays."""
        await self._database.transact(_record_call, call)

    async def calls(self) -> tuple[int, int, int, float]:
        """Number, prompt tokens, completion tokens and cost of all calls in the ledger."""
        return await self._database.read(_calls)


def live_owner(path: Path, run: str) -> int | None:
    """The process that works on a run of the store at `path`, known to be alive; None where there is none, or no store.

    Reads the file and changes nothing, whoever has it open.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT owner FROM leases WHERE name = ?", (f"run/{run}",)).fetchone()
    except sqlite3.Error:  # absent, empty, or no database at all
        return None
    return _pid(row[0]) if row is not None and owner_is_alive(row[0]) else None


def _pid(owner: str) -> int:
    return int(owner.split(":")[1])


def _open_run(connection: sqlite3.Connection, run: str, command: str, settings: str, path: str) -> Run:
    name, me = f"run/{run}", owner_token()
    row = connection.execute("SELECT owner FROM leases WHERE name = ?", (name,)).fetchone()
    if row is not None and row[0] != me and owner_is_alive(row[0]):
        raise StoreError(path, f"process {_pid(row[0])} works on run '{run}'", "Wait for it, or end it")
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?)", (name, me))
    connection.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, 'open', 0) ON CONFLICT DO NOTHING", (run, command, settings, time.time())
    )
    return next(r for r in _runs(connection) if r.run == run)


def _disown(connection: sqlite3.Connection, names: set[str]) -> None:
    connection.executemany("DELETE FROM leases WHERE name = ?", [(name,) for name in names])


def _runs(connection: sqlite3.Connection) -> list[Run]:
    rows = connection.execute("SELECT run, command, settings, created, state, started FROM runs ORDER BY created, run")
    return [
        Run(run=run, command=command, settings=settings, created=created, state=state, started=bool(started))
        for run, command, settings, created, state, started in rows
    ]


def _start(connection: sqlite3.Connection, run: str, entries: Sequence[Entry]) -> bool:
    if connection.execute("UPDATE runs SET started = 1 WHERE run = ? AND started = 0", (run,)).rowcount == 0:
        return False
    for entry in entries:
        _add(connection, run, entry)
    return True


def _commit(
    connection: sqlite3.Connection,
    run: str,
    done: tuple[str, str],
    outputs: Sequence[Entry],
    notes: Sequence[Note],
    *,
    settle: Settle,
    given_up: str,
) -> list[Entry] | None:
    if given_up:
        connection.execute(
            "INSERT OR REPLACE INTO dead_letters SELECT run, queue, item, body, ?, ? FROM items"
            " WHERE run = ? AND queue = ? AND item = ? AND state = 'pending'",
            (given_up, time.time(), run, *done),
        )
    changed = connection.execute(
        "UPDATE items SET state = 'done', body = NULL, updated = ?"
        " WHERE run = ? AND queue = ? AND item = ? AND state = 'pending'",
        (time.time(), run, *done),
    )
    if changed.rowcount == 0:
        return None
    for entry in outputs:
        try:
            _add(connection, run, entry)
        except sqlite3.IntegrityError:
            raise ItemConflict(entry.queue, entry.item) from None
    # The source hears of it last: what may still be refused above must not have moved it.
    admitted = [new for entry in outputs if entry.terminal for new in settle(entry)]
    for entry in admitted:
        _add(connection, run, entry)
    _journal(connection, run, notes)
    return admitted


def _add(connection: sqlite3.Connection, run: str, entry: Entry) -> None:
    connection.execute(
        "INSERT INTO items (run, queue, item, state, body, updated) VALUES (?, ?, ?, ?, ?, ?)",
        (run, entry.queue, entry.item, "terminal" if entry.terminal else "pending", entry.body, time.time()),
    )


def _fail(connection: sqlite3.Connection, run: str, at: tuple[str, str], note: Note) -> int:
    _journal(connection, run, [note])
    row = connection.execute(
        "UPDATE items SET attempts = attempts + 1, updated = ?"
        " WHERE run = ? AND queue = ? AND item = ? AND state = 'pending' RETURNING attempts",
        (time.time(), run, *at),
    ).fetchone()
    return int(row[0]) if row else 0


def _dead_letters(connection: sqlite3.Connection, run: str) -> list[DeadLetter]:
    rows = connection.execute(
        "SELECT queue, item, body, reason, at FROM dead_letters WHERE run = ? ORDER BY at, item", (run,)
    )
    return [DeadLetter(**dict(zip(DeadLetter.__struct_fields__, row, strict=True))) for row in rows]


def _requeue(connection: sqlite3.Connection, run: str, letter: DeadLetter, entry: Entry) -> bool:
    if not connection.execute("DELETE FROM dead_letters WHERE run = ? AND item = ?", (run, letter.item)).rowcount:
        return False
    try:
        _add(connection, run, entry)
    except sqlite3.IntegrityError:
        raise ItemConflict(entry.queue, entry.item) from None
    connection.execute("UPDATE runs SET state = 'open' WHERE run = ?", (run,))
    _journal(connection, run, [Note(item=entry.item, kind="requeued", detail=f"for {letter.item}: {letter.reason}")])
    return True


def _finish(connection: sqlite3.Connection, run: str) -> None:
    connection.execute("UPDATE runs SET state = 'finished' WHERE run = ?", (run,))


def _entries(connection: sqlite3.Connection, run: str, state: str) -> list[Entry]:
    rows = connection.execute(
        "SELECT queue, item, body, attempts FROM items WHERE run = ? AND state = ? ORDER BY seq", (run, state)
    )
    return [
        Entry(queue=queue, item=item, body=body, terminal=state == "terminal", attempts=attempts)
        for queue, item, body, attempts in rows
    ]


def _items(connection: sqlite3.Connection, run: str) -> set[str]:
    return {item for (item,) in connection.execute("SELECT DISTINCT item FROM items WHERE run = ?", (run,))}


def _tally(connection: sqlite3.Connection, run: str) -> Tally:
    items, pending, terminal = connection.execute(
        "SELECT count(DISTINCT item), total(state = 'pending'), total(state = 'terminal') FROM items WHERE run = ?",
        (run,),
    ).fetchone()
    return Tally(items=items, pending=int(pending), terminal=int(terminal))


def _where(connection: sqlite3.Connection, run: str, item: str) -> Where | None:
    row = connection.execute(
        "SELECT queue, state, attempts, updated FROM items WHERE run = ? AND item = ? AND state <> 'done'", (run, item)
    ).fetchone()
    return None if row is None else Where(**dict(zip(Where.__struct_fields__, row, strict=True)))


def _counts(connection: sqlite3.Connection, run: str) -> dict[tuple[str, str], int]:
    rows = connection.execute("SELECT queue, state, count(*) FROM items WHERE run = ? GROUP BY queue, state", (run,))
    return {(queue, state): count for queue, state, count in rows}


def _journal(connection: sqlite3.Connection, run: str, notes: Sequence[Note]) -> None:
    connection.executemany(
        "INSERT INTO events (run, item, at, kind, stage, detail) VALUES (?, ?, ?, ?, ?, ?)",
        [(run, note.item, time.time(), note.kind, note.stage, note.detail) for note in notes],
    )


def _notes(connection: sqlite3.Connection, run: str, item: str | None) -> list[Note]:
    rows = connection.execute(
        "SELECT item, kind, stage, detail, at FROM events WHERE run = ?1 AND (?2 IS NULL OR item = ?2) ORDER BY seq",
        (run, item),
    )
    return [Note(item=item, kind=kind, stage=stage, detail=detail, at=at) for item, kind, stage, detail, at in rows]


def _call(connection: sqlite3.Connection, key: str) -> Call | None:
    row = connection.execute(
        "SELECT key, request_digest, response, prompt_tokens, completion_tokens, cost, attempts"
        " FROM calls WHERE key = ?",
        (key,),
    ).fetchone()
    return None if row is None else Call(**dict(zip(Call.__struct_fields__, row, strict=True)))


def _record_call(connection: sqlite3.Connection, call: Call) -> None:
    connection.execute(
        "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*msgspec.structs.astuple(call), time.time()),
    )


def _calls(connection: sqlite3.Connection) -> tuple[int, int, int, float]:
    count, prompt, completion, cost = connection.execute(
        "SELECT count(*), total(prompt_tokens), total(completion_tokens), total(cost) FROM calls"
    ).fetchone()
    return int(count), int(prompt), int(completion), float(cost)
