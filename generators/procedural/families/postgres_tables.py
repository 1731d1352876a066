"""Work on a running PostgreSQL server: clean rows, an index, a view, a role with rights, a report."""

from __future__ import annotations

import random
from dataclasses import replace

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file
from generators.procedural.tables import Trade, draw_trade, with_flaws
from sandbox.services import Service

name = "postgres-tables"
category = "database"
tools: tuple[str, ...] = ("psql",)
depths = range(1, 5)

_BIN = "/usr/lib/postgresql/15/bin"
_OPTIONS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=16MB -c max_connections=20"


class _Server:
    """How the server is reached."""

    def __init__(self, port: int, database: str) -> None:
        self.port, self.database = port, database

    def sql(self, statement: str, *options: str) -> str:
        """A shell command that runs the statement."""
        return " ".join(["psql -h 127.0.0.1 -p", str(self.port), "-d", self.database, *options, "-c", f'"{statement}"'])

    def rows(self, statement: str) -> str:
        """A Python expression: the statement's rows, as lists of texts."""
        argv = ["psql", "-X", "-At", "-h", "127.0.0.1", "-p", str(self.port), "-d", self.database, "-c", statement]
        return f"[row.split('|') for row in run(*{argv!r}).splitlines()]"


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    trade = with_flaws(rng, draw_trade(rng))
    server = _Server(rng.randint(5433, 5499), rng.choice(words.PROJECTS))
    jobs = rng.sample((_tidy, _index, _view, _role, _count), depth)
    final = _tidied(trade) if _tidy in jobs else trade
    where = f"PostgreSQL server on 127.0.0.1, port {server.port}, database {server.database}"
    return assemble(
        family=name,
        title=f"PostgreSQL {trade.table}",
        place=place,
        openings=(
            f"A {where}, has the tables {trade.owners_table} and {trade.table} ({trade.table}.{trade.owner}_id refers to {trade.owners_table}.id); you may log in as agent without a password. Its files are in {place.directory}. Do the following and leave everything else in the database as it is.",
            f"We keep {trade.table} in a {where} (files in {place.directory}, user agent, no password); the tables are {trade.owners_table} and {trade.table}, linked by {trade.owner}_id. What I don't mention stays untouched.",
            f"Please work in our {where}. You get in as agent without a password, the server runs from {place.directory}, and the tables are {trade.owners_table} and {trade.table}, joined over {trade.owner}_id. Nothing beyond this:",
        ),
        steps=[job(rng, trade, server, place) for job in jobs],
        files=(text_file(place, "load.sql", trade.sql()),),
        setup=(
            f"{_BIN}/initdb -D db -U agent -A trust --no-sync --no-locale -E UTF8 --wal-segsize=1 >/dev/null",
            f"{_BIN}/pg_ctl -D db -w -s -l /dev/null -o '{_OPTIONS} -p {server.port}' start",
            f"createdb -h 127.0.0.1 -p {server.port} {server.database}",
            f"psql -q -h 127.0.0.1 -p {server.port} -d {server.database} -v ON_ERROR_STOP=1 -f load.sql",
            f"{_BIN}/pg_ctl -D db -w -s -m fast stop",
        ),
        services=(
            Service(
                name="postgresql",
                command=f"env -C {place.directory} bash -c 'rm -f db/postmaster.pid; exec {_BIN}/postgres -D db -p {server.port} {_OPTIONS}'",
                check=f"psql -h 127.0.0.1 -p {server.port} -d {server.database} -c 'SELECT 1'",
            ),
        ),
        initial_checks=(
            present(place.directory, ("load.sql",)),
            check(place.directory, "server", f"assert {server.rows('SELECT 1')} == [['1']]"),
        ),
        guards=(_rows_are(place, server, final),),
    )


def _rows_are(place: Place, server: _Server, trade: Trade) -> str:
    rows = sorted(
        ([str(row.id), str(row.owner), row.day, str(row.amount), row.status] for row in trade.entries),
        key=lambda row: int(row[0]),
    )
    listed = "".join(f"    {row!r},\n" for row in rows)
    query = f"SELECT id, {trade.owner}_id, day, {trade.measure}, status FROM {trade.table} ORDER BY id"
    return check(place.directory, "rows", f"expected = [\n{listed}]\nassert {server.rows(query)} == expected")


def _tidied(trade: Trade) -> Trade:
    return replace(trade, entries=tuple(replace(row, status=row.status.strip().lower()) for row in trade.entries))


def _tidy(rng: random.Random, trade: Trade, server: _Server, place: Place) -> Step:
    table = trade.table
    return Step(
        says=(
            f"Make every status in {table} lower case, without blanks at either end.",
            f"Normalise the status column of {table}: all lower case, leading and trailing blanks gone.",
            f"Clean up status in {table}, it is spelled unevenly; I want lower case throughout and no blanks around it.",
        ),
        thought="One update with lower and trim over all rows.",
        command=server.sql(f"UPDATE {table} SET status = lower(trim(status))"),
        mistakes=(
            slip(
                "analysis_error",
                server.sql(f"UPDATE {table} SET status = lower(status)"),
                "It is only a matter of upper and lower case.",
            ),
            slip(
                "verification_failure",
                server.sql(f"SELECT id, lower(trim(status)) FROM {table}", "-q"),
                "The output shows clean values.",
            ),
            slip(
                "command_error",
                server.sql(f"BEGIN; UPDATE {table} SET status = lower(trim(status)); ROLLBACK"),
                "I put the change into a transaction to be on the safe side.",
            ),
        ),
    )


def _index(rng: random.Random, trade: Trade, server: _Server, place: Place) -> Step:
    table, key = trade.table, f"{trade.owner}_id"
    index = f"idx_{table}_{rng.choice(words.TERMS)}"
    query = f"SELECT indexdef FROM pg_indexes WHERE indexname = '{index}'"
    return Step(
        says=(
            f"Create a plain index {index} on {table} over the columns {key} and day, in this order.",
            f"Add an ordinary index to {table} named {index}; its columns are {key} first, then day.",
            f"Speed up look-ups of {key} with day in {table}: an ordinary index called {index} over these two columns, in that order.",
        ),
        thought="A plain two-column index; the order of its columns matters.",
        command=server.sql(f"CREATE INDEX {index} ON {table} ({key}, day)"),
        checks=(
            check(
                place.directory,
                "index",
                f"expected = [['CREATE INDEX {index} ON public.{table} USING btree ({key}, day)']]\n"
                f"assert {server.rows(query)} == expected",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                server.sql(f"CREATE INDEX {index} ON {table} (day, {key})"),
                "Both columns are in it.",
                server.sql(f"DROP INDEX {index}"),
            ),
            slip(
                "requirement_violation",
                server.sql(f"CREATE INDEX {table}_{key}_day ON {table} ({key}, day)"),
                "I name the index after its table and columns.",
                server.sql(f"DROP INDEX {table}_{key}_day"),
            ),
            slip(
                "hallucination",
                server.sql(f"ALTER TABLE {table} ADD INDEX {index} ({key}, day)"),
                "ALTER TABLE can add an index.",
            ),
        ),
    )


def _view(rng: random.Random, trade: Trade, server: _Server, place: Place) -> Step:
    view = f"{rng.choice(words.TERMS)}_summary"
    rows = sorted([owner.name, str(len({row.day for row in trade.of(owner)}))] for owner in trade.owners)
    on = f"{trade.table} e ON e.{trade.owner}_id = o.id GROUP BY o.id"
    select = f"AS SELECT o.name AS name, count(DISTINCT e.day) AS days FROM {trade.owners_table} o"
    kind = f"SELECT relkind FROM pg_class WHERE relname = '{view}'"
    drop = server.sql(f"DROP VIEW {view}")
    return Step(
        says=(
            f"Create a view {view} with the columns name and days: for each of the {trade.owners_table}, also those without {trade.table}, the number of different days with {trade.table}.",
            f"Make a view named {view} that shows, for all {trade.owners_table} without exception, name and the number of distinct days with {trade.table} as days (0 if there are none).",
            f"Set up a view called {view}, two columns name and days: on how many different days each of the {trade.owners_table} has {trade.table}. Nobody may be missing from it, even with 0 days.",
        ),
        thought="A left join keeps those without entries; count distinct days.",
        command=server.sql(f"CREATE VIEW {view} {select} LEFT JOIN {on}"),
        checks=(
            check(
                place.directory,
                "view",
                f"assert {server.rows(kind)} == [['v']]\nassert {server.rows(f'SELECT name, days FROM {view} ORDER BY name')} == {rows!r}",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                server.sql(f"CREATE VIEW {view} {select} JOIN {on}"),
                "A join of both tables brings name and day together.",
                drop,
            ),
            slip(
                "requirement_violation",
                server.sql(f"CREATE TABLE {view} {select} LEFT JOIN {on}"),
                "A table is faster to read than a view.",
                server.sql(f"DROP TABLE {view}"),
            ),
            slip(
                "command_error",
                server.sql(
                    f"CREATE VIEW {view} AS SELECT o.name AS name, count(*) AS days FROM {trade.owners_table} o LEFT JOIN {on}"
                ),
                "count(*) counts the days.",
                drop,
            ),
        ),
    )


def _role(rng: random.Random, trade: Trade, server: _Server, place: Place) -> Step:
    role = f"{rng.choice(words.TEAMS).replace('-', '_')}_{rng.choice(('reader', 'viewer', 'report'))}"
    table = trade.table
    query = (
        f"SELECT rolcanlogin, rolsuper, has_table_privilege('{role}', '{table}', 'SELECT'), "
        f"has_table_privilege('{role}', '{table}', 'INSERT, UPDATE, DELETE'), "
        f"has_table_privilege('{role}', '{trade.owners_table}', 'SELECT') FROM pg_roles WHERE rolname = '{role}'"
    )
    drop = (server.sql(f"DROP OWNED BY {role}"), server.sql(f"DROP ROLE {role}"))
    return Step(
        says=(
            f"Create a role {role} that may log in and may read {table}, and may do nothing else with either table.",
            f"Add a login role named {role}; it gets the right to select from {table} and no other right on the two tables.",
            f"The colleagues need a database user called {role} to log in with. Reading {table} is all it may do to our two tables.",
        ),
        thought="A role with LOGIN, then one grant.",
        command=server.sql(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON {table} TO {role}"),
        checks=(
            check(
                place.directory,
                "role",
                f"assert {server.rows(query)} == [['t', 'f', 't', 'f', 'f']]",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                server.sql(f"CREATE ROLE {role}; GRANT SELECT ON {table} TO {role}"),
                "A role is a user.",
                *drop,
            ),
            slip(
                "requirement_violation",
                server.sql(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"),
                "Reading does no harm, so it may read everything.",
                *drop,
            ),
            slip(
                "command_error",
                server.sql(f"CREATE ROLE {role} LOGIN; GRANT ALL ON {table} TO {role}"),
                "I give it its rights on the table.",
                *drop,
            ),
        ),
    )


def _count(rng: random.Random, trade: Trade, server: _Server, place: Place) -> Step:
    file = f"{rng.choice(words.STEMS)}-{rng.choice(words.TERMS)}.csv"
    target = f"{place.directory}/{file}"
    cities = sorted({owner.city for owner in trade.owners})
    counts = [(city, sum(len(trade.of(owner)) for owner in trade.owners if owner.city == city)) for city in cities]
    lines = [f"{city},{count}" for city, count in counts]
    tables = f"{trade.owners_table} o {{join}} {trade.table} e ON e.{trade.owner}_id = o.id GROUP BY o.city"
    form = ("-At", "-F,")
    ordered = f"SELECT o.city, {{count}} FROM {tables} ORDER BY o.city"
    return report(
        place,
        file,
        lines,
        server.sql(ordered.format(join="LEFT JOIN", count="count(e.id)"), *form),
        says=(
            f"Write the number of rows in {trade.table} for each city of {trade.owners_table} to {target}: lines of city and number with a comma between, sorted by city, no header.",
            f"Count the rows of {trade.table} by the city in {trade.owners_table} and put the result into {target}, one line city,number for each city, in alphabetical order and without a header.",
            f"I'd like to know how many rows of {trade.table} belong to each city (it's in {trade.owners_table}): lines like city,number in {target}, alphabetical, no header.",
        ),
        thought="Join, group by city, order by city; unaligned output with a comma.",
        slips=(
            (
                "analysis_error",
                server.sql(f"SELECT city, count(*) FROM {trade.owners_table} GROUP BY city ORDER BY city", *form),
                "One count per city from the table that has the city.",
            ),
            (
                "requirement_violation",
                server.sql(ordered.format(join="LEFT JOIN", count="count(e.id)"), "-A", "-F,"),
                "Comma-separated output is what psql gives with -A.",
            ),
        ),
    )
