"""Small relational data for the database families: who did what on which day, in one of several trades."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

from generators.procedural import words

_TRADES = (
    ("customer", "orders", "amount", ("paid", "open", "refunded")),
    ("driver", "trips", "distance", ("done", "planned", "cancelled")),
    ("member", "loans", "days", ("returned", "running", "lost")),
    ("host", "incidents", "minutes", ("resolved", "open", "ignored")),
    ("supplier", "deliveries", "crates", ("accepted", "late", "rejected")),
    ("tutor", "lessons", "fee", ("held", "booked", "cancelled")),
    ("plant", "inspections", "findings", ("closed", "pending", "waived")),
)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A row of the parent table."""

    id: int
    name: str
    city: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the child table."""

    id: int
    owner: int
    day: str
    amount: int
    status: str


@dataclass(frozen=True, kw_only=True)
class Trade:
    """Two tables with their rows. `owners[-1]` has no entry; no owner has two entries on one day."""

    owner: str
    table: str
    measure: str
    statuses: tuple[str, ...]
    owners: tuple[Owner, ...]
    entries: tuple[Entry, ...]

    @property
    def owners_table(self) -> str:
        return f"{self.owner}s"

    def of(self, owner: Owner) -> list[Entry]:
        """The owner's entries."""
        return [entry for entry in self.entries if entry.owner == owner.id]

    def sql(self) -> str:
        """Statements that make and fill both tables."""
        key = f"{self.owner}_id"
        return "\n".join(
            (
                f"CREATE TABLE {self.owners_table} (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);",
                f"CREATE TABLE {self.table} (id INTEGER PRIMARY KEY, {key} INTEGER NOT NULL REFERENCES {self.owners_table}(id), "
                f"day TEXT NOT NULL, {self.measure} INTEGER NOT NULL, status TEXT NOT NULL);",
                _insert(self.owners_table, ((row.id, row.name, row.city) for row in self.owners)),
                _insert(self.table, ((row.id, row.owner, row.day, row.amount, row.status) for row in self.entries)),
                "",
            )
        )


def draw_trade(rng: random.Random) -> Trade:
    """Eight to ten owners, some 30 entries over three months."""
    owner, table, measure, statuses = rng.choice(_TRADES)
    cities = words.distinct(rng, words.CITIES, 4)
    names = words.distinct(rng, words.SURNAMES, rng.randint(8, 10))
    owners = tuple(
        Owner(id=number, name=f"{rng.choice(words.PEOPLE).title()} {surname.title()}", city=rng.choice(cities))
        for number, surname in enumerate(names, 1)
    )
    first = words.moment(rng)
    slots = [(row.id, offset) for row in owners[:-1] for offset in rng.sample(range(90), rng.randint(2, 5))]
    rng.shuffle(slots)
    entries = tuple(
        Entry(
            id=100 + number,
            owner=who,
            day=(first + timedelta(days=offset)).strftime("%Y-%m-%d"),
            amount=rng.randint(3, 480),
            status=rng.choice(statuses),
        )
        for number, (who, offset) in enumerate(slots, 1)
    )
    return Trade(owner=owner, table=table, measure=measure, statuses=statuses, owners=owners, entries=entries)


def with_flaws(rng: random.Random, trade: Trade) -> Trade:
    """The same with uneven spelling of the status and with some entries repeated under a later id."""
    spelled = [
        replace(row, status=rng.choice((str, str, str.upper, str.title, " {} ".format))(row.status))
        for row in trade.entries
    ]
    spelled[0] = replace(spelled[0], status=f" {trade.entries[0].status.title()}")
    again = [replace(row, id=500 + number) for number, row in enumerate(rng.sample(spelled, rng.randint(3, 5)), 1)]
    return replace(trade, entries=(*spelled, *again))


def _insert(table: str, rows: Iterable[tuple[int | str, ...]]) -> str:
    values = ",\n".join(
        "  (" + ", ".join(f"'{cell}'" if isinstance(cell, str) else str(cell) for cell in row) + ")" for row in rows
    )
    return f"INSERT INTO {table} VALUES\n{values};"
