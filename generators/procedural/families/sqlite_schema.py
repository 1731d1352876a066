"""Changes to an SQLite database: clean rows, drop doubles, add an index, a filled column, a view."""

from __future__ import annotations

import random
from dataclasses import replace

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file
from generators.procedural.tables import Trade, draw_trade, with_flaws

name = "sqlite-schema"
category = "database"
tools: tuple[str, ...] = ("sqlite3",)
depths = range(1, 6)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    trade = with_flaws(rng, draw_trade(rng))
    db = f"{rng.choice(words.PROJECTS)}.db"
    path = f"{place.directory}/{db}"
    jobs = sorted(rng.sample((_tidy, _dedupe, _index, _column, _view), depth), key=lambda job: job is _tidy)
    final = trade
    for job in jobs:
        final = _AFTER[job](final) if job in _AFTER else final
    return assemble(
        family=name,
        title=f"Rework the {trade.table} database",
        place=place,
        openings=(
            f"The SQLite database {path} has the tables {trade.owners_table} and {trade.table} ({trade.table}.{trade.owner}_id refers to {trade.owners_table}.id). Change it as follows and leave everything else in it as it is.",
            f"Our {trade.table} live in {path}, an SQLite file with the tables {trade.owners_table} and {trade.table} (linked by {trade.owner}_id). It needs some work; whatever I don't mention stays untouched.",
            f"I'd like to have {path} put in order (SQLite, tables {trade.owners_table} and {trade.table}, joined over {trade.owner}_id), nothing beyond this:",
        ),
        steps=[job(rng, trade, db, path) for job in jobs],
        files=(text_file(place, "load.sql", trade.sql()),),
        setup=(f"sqlite3 {db} < load.sql",),
        initial_checks=(present(place.directory, ("load.sql", db)),),
        guards=(_rows_are(path, final),),
    )


def _rows_are(path: str, trade: Trade) -> str:
    rows = sorted([row.id, row.owner, row.day, row.amount, row.status] for row in trade.entries)
    listed = "".join(f"    {row!r},\n" for row in rows)
    columns = f"id, {trade.owner}_id, day, {trade.measure}, status"
    return check(
        path,
        "rows",
        f"expected = [\n{listed}]\nassert query(path, 'SELECT {columns} FROM {trade.table} ORDER BY id') == expected",
    )


def _tidied(trade: Trade) -> Trade:
    return replace(trade, entries=tuple(replace(row, status=row.status.strip().lower()) for row in trade.entries))


def _deduped(trade: Trade) -> Trade:
    return replace(trade, entries=tuple(row for row in trade.entries if row.id < 500))


def _run(db: str, statement: str) -> str:
    return f'sqlite3 {db} "{statement}"'


def _tidy(rng: random.Random, trade: Trade, db: str, path: str) -> Step:
    table = trade.table
    return Step(
        says=(
            f"Make every status in {table} lower case, without blanks at either end.",
            f"Normalise the status column of {table}: all lower case, leading and trailing blanks gone.",
            f"Clean up status in {table}, it is spelled unevenly; I want lower case throughout and no blanks around it.",
        ),
        thought="One update with lower and trim over all rows.",
        command=_run(db, f"UPDATE {table} SET status = lower(trim(status))"),
        mistakes=(
            slip(
                "analysis_error",
                _run(db, f"UPDATE {table} SET status = lower(status)"),
                "It is only a matter of upper and lower case.",
            ),
            slip(
                "verification_failure",
                _run(db, f"SELECT id, lower(trim(status)) FROM {table}"),
                "The output shows clean values.",
            ),
            slip(
                "command_error",
                _run(
                    db,
                    f"UPDATE {table} SET status = '{trade.statuses[0]}' WHERE lower(status) LIKE '%{trade.statuses[0][:3]}%'",
                ),
                "I set the right spelling where it is close.",
            ),
        ),
    )


def _dedupe(rng: random.Random, trade: Trade, db: str, path: str) -> Step:
    table = trade.table
    group = f"GROUP BY {trade.owner}_id, day"
    return Step(
        says=(
            f"Remove doubles from {table}: of several rows with the same {trade.owner}_id and day keep only the one with the lowest id.",
            f"Delete the repeated entries of {table}. Rows are the same entry if {trade.owner}_id and day agree; the lowest id stays.",
            f"Get rid of what was imported twice into {table}, where twice means the same {trade.owner}_id on the same day, and keep the row with the lowest id each time.",
        ),
        thought="Keep the lowest id of each group, delete the rest.",
        command=_run(db, f"DELETE FROM {table} WHERE id NOT IN (SELECT min(id) FROM {table} {group})"),
        mistakes=(
            slip(
                "requirement_violation",
                _run(db, f"DELETE FROM {table} WHERE id NOT IN (SELECT max(id) FROM {table} {group})"),
                "The newest copy is the one to keep.",
                *_again(trade, db),
            ),
            slip(
                "analysis_error",
                _run(
                    db, f"DELETE FROM {table} WHERE id NOT IN (SELECT min(id) FROM {table} GROUP BY {trade.owner}_id)"
                ),
                f"One row for each {trade.owner} remains.",
                *_again(trade, db),
            ),
            slip(
                "verification_failure",
                _run(db, f"SELECT DISTINCT {trade.owner}_id, day FROM {table}"),
                "SELECT DISTINCT shows no doubles any more.",
            ),
        ),
    )


def _again(trade: Trade, db: str) -> tuple[str, ...]:
    """Loads the rows anew; good as long as they have not been tidied, which is always the last step."""
    return (_run(db, f"DELETE FROM {trade.table}"), f"sed -n '/INTO {trade.table} /,$p' load.sql | sqlite3 {db}")


def _index(rng: random.Random, trade: Trade, db: str, path: str) -> Step:
    table, key = trade.table, f"{trade.owner}_id"
    index = f"idx_{table}_{rng.choice(words.TERMS)}"
    return Step(
        says=(
            f"Create an index {index} on {table} over the columns {key} and day, in this order.",
            f"Add an index to {table} named {index}; its columns are {key} first, then day.",
            f"Speed up look-ups of {key} with day in {table}: an index called {index} over these two columns, in that order.",
        ),
        thought="A plain two-column index; the order of its columns matters.",
        command=_run(db, f"CREATE INDEX {index} ON {table} ({key}, day)"),
        checks=(
            check(
                path,
                "index",
                f"assert query(path, \"SELECT tbl_name FROM sqlite_master WHERE type = 'index' AND name = '{index}'\") == [['{table}']]\n"
                f"assert query(path, \"SELECT name FROM pragma_index_info('{index}') ORDER BY seqno\") == [['{key}'], ['day']]",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                _run(db, f"CREATE INDEX {index} ON {table} (day, {key})"),
                "Both columns are in it.",
                _run(db, f"DROP INDEX {index}"),
            ),
            slip(
                "requirement_violation",
                _run(db, f"CREATE INDEX {table}_{key}_day ON {table} ({key}, day)"),
                "I name the index after its table and columns.",
                _run(db, f"DROP INDEX {table}_{key}_day"),
            ),
            slip(
                "hallucination",
                _run(db, f"ALTER TABLE {table} ADD INDEX {index} ({key}, day)"),
                "ALTER TABLE can add an index.",
            ),
        ),
    )


def _column(rng: random.Random, trade: Trade, db: str, path: str) -> Step:
    column = f"last_{rng.choice(words.TERMS)}"
    last = [[owner.id, max((row.day for row in trade.of(owner)), default=None)] for owner in trade.owners]
    owners, add = trade.owners_table, f"ALTER TABLE {trade.owners_table} ADD COLUMN {column} TEXT"
    days = f"FROM {trade.table} e WHERE e.{trade.owner}_id = {owners}.id"
    drop = (_run(db, f"ALTER TABLE {owners} DROP COLUMN {column}"),)
    return Step(
        says=(
            f"Add a text column {column} to {owners} that holds the latest day among the {trade.owner}'s {trade.table}, and NULL where there are none.",
            f"Give {owners} a new column {column} (TEXT) and fill it with the day of the most recent of their {trade.table}; who has none keeps NULL.",
            f"Extend {owners} by {column}, a text column: the newest day found in {trade.table} for that {trade.owner}, NULL if there is nothing.",
        ),
        thought="Add the column, then fill it with a correlated maximum; max over nothing is NULL.",
        command=_run(db, f"{add}; UPDATE {owners} SET {column} = (SELECT max(day) {days})"),
        checks=(
            check(path, "column", f"assert query(path, 'SELECT id, {column} FROM {owners} ORDER BY id') == {last!r}"),
        ),
        mistakes=(
            slip(
                "analysis_error",
                _run(db, f"{add}; UPDATE {owners} SET {column} = (SELECT min(day) {days})"),
                "One day per row from the subquery is enough.",
                *drop,
            ),
            slip(
                "requirement_violation",
                _run(db, f"{add}; UPDATE {owners} SET {column} = coalesce((SELECT max(day) {days}), '')"),
                "An empty text is tidier than NULL.",
                *drop,
            ),
            slip("verification_failure", _run(db, add), "The column is there now.", *drop),
        ),
    )


def _view(rng: random.Random, trade: Trade, db: str, path: str) -> Step:
    view = f"{rng.choice(words.TERMS)}_summary"
    rows = sorted([owner.name, len({row.day for row in trade.of(owner)})] for owner in trade.owners)
    on = f"{trade.table} e ON e.{trade.owner}_id = o.id GROUP BY o.id"
    select = f"AS SELECT o.name AS name, count(DISTINCT e.day) AS days FROM {trade.owners_table} o"
    drop = _run(db, f"DROP VIEW {view}")
    return Step(
        says=(
            f"Create a view {view} with the columns name and days: for each of the {trade.owners_table}, also those without {trade.table}, the number of different days with {trade.table}.",
            f"Make a view named {view} that shows, for all {trade.owners_table} without exception, name and the number of distinct days with {trade.table} as days (0 if there are none).",
            f"Set up a view called {view}, two columns name and days: on how many different days each of the {trade.owners_table} has {trade.table}. Nobody may be missing from it, even with 0 days.",
        ),
        thought="A left join keeps those without entries; count distinct days.",
        command=_run(db, f"CREATE VIEW {view} {select} LEFT JOIN {on}"),
        checks=(
            check(
                path,
                "view",
                f"assert query(path, \"SELECT type FROM sqlite_master WHERE name = '{view}'\") == [['view']]\n"
                f"assert query(path, 'SELECT name, days FROM {view} ORDER BY name') == {rows!r}",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                _run(db, f"CREATE VIEW {view} {select} JOIN {on}"),
                "A join of both tables brings name and day together.",
                drop,
            ),
            slip(
                "requirement_violation",
                _run(db, f"CREATE TABLE {view} {select} LEFT JOIN {on}"),
                "A table is faster to read than a view.",
                _run(db, f"DROP TABLE {view}"),
            ),
            slip(
                "command_error",
                _run(
                    db,
                    f"CREATE VIEW {view} AS SELECT o.name AS name, count(*) AS days FROM {trade.owners_table} o LEFT JOIN {on}",
                ),
                "count(*) counts the days.",
                drop,
            ),
        ),
    )


_AFTER = {_tidy: _tidied, _dedupe: _deduped}
