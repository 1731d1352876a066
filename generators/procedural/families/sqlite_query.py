"""Questions to an SQLite database, answered with one statement each."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

from generators.procedural import words
from generators.procedural.checks import check, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, text_file
from generators.procedural.tables import Trade, draw_trade

name = "sqlite-query"
category = "database"
tools: tuple[str, ...] = ("sqlite3",)
depths = range(1, 6)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    trade = draw_trade(rng)
    db = f"{rng.choice(words.PROJECTS)}.db"
    path = f"{place.directory}/{db}"
    source = text_file(place, "load.sql", trade.sql())
    about = f"tables {trade.owners_table} and {trade.table}, joined by {trade.table}.{trade.owner}_id"
    jobs = rng.sample(_JOBS, depth)
    return assemble(
        family=name,
        title=f"Questions about {trade.table}",
        place=place,
        openings=(
            f"The SQLite database {path} has the {about}. Answer from it; fields in the results are separated by `|`, without a header line.",
            f"I have the {trade.table} of our {trade.owners_table} in the SQLite file {path} ({about}). All I need are plain text files, fields separated by `|`, no header.",
            f"Please get some figures out of {path} for me, it is an SQLite database with the {about}. No header lines, and `|` between fields.",
        ),
        steps=[job(rng, trade, db, place) for job in jobs],
        files=(source,),
        setup=(f"sqlite3 {db} < load.sql",),
        initial_checks=(
            present(place.directory, (source.path.rsplit("/", 1)[1],)),
            check(
                path,
                "is_loaded",
                f"assert query(path, 'SELECT count(*) FROM {trade.table}') == [[{len(trade.entries)}]]",
            ),
        ),
        guards=(unchanged(source.path, source.data),),
    )


def _ask(db: str, statement: str) -> str:
    return f'sqlite3 {db} "{statement}"'


def _top(rng: random.Random, trade: Trade, db: str, place: Place) -> Step:
    status = rng.choice(trade.entries).status
    totals = {owner.name: sum(row.amount for row in trade.of(owner) if row.status == status) for owner in trade.owners}
    ranked = sorted(((total, who) for who, total in totals.items() if total), key=lambda pair: (-pair[0], pair[1]))[:3]
    target = f"{place.directory}/top.txt"
    join = f"FROM {trade.owners_table} o JOIN {trade.table} e ON e.{trade.owner}_id = o.id"
    where, sort = f"WHERE e.status = '{status}'", "GROUP BY o.id ORDER BY 2 DESC, o.name LIMIT 3"
    columns = f"o.name, sum(e.{trade.measure})"
    return report(
        place,
        "top.txt",
        [f"{who}|{total}" for total, who in ranked],
        _ask(db, f"SELECT {columns} {join} {where} {sort}"),
        says=(
            f"Write to {target} the three {trade.owners_table} with the highest sum of {trade.measure} over their {trade.table} with status `{status}`: name and sum, highest first, equal sums by name (only those that have such {trade.table}).",
            f"Find the top three {trade.owners_table} by total {trade.measure}, counting only {trade.table} whose status is `{status}` (who has none is left out), and save name and total to {target}, biggest total first and ties by name.",
            f"Give me the best three in {target}, as name and total {trade.measure}: only {trade.table} with status `{status}` count, {trade.owners_table} without any don't appear, the largest total is on top and the name decides between equal ones.",
        ),
        thought="Join, filter by status, sum per owner, sort, three rows.",
        slips=(
            (
                "analysis_error",
                _ask(db, f"SELECT {columns} {join} GROUP BY o.id ORDER BY 2 DESC, o.name LIMIT 4"),
                f"All {trade.table} count towards the total.",
            ),
            (
                "requirement_violation",
                _ask(
                    db,
                    f"SELECT sum(e.{trade.measure}), o.name {join} {where} GROUP BY o.id ORDER BY 1 DESC, o.name LIMIT 3",
                ),
                "The total first, then who it belongs to.",
            ),
            (
                "hallucination",
                _ask(db, f"SELECT name, total FROM {trade.owner}_totals ORDER BY total DESC LIMIT 3"),
                "There will be a view with the totals.",
            ),
        ),
    )


def _cities(rng: random.Random, trade: Trade, db: str, place: Place) -> Step:
    counts = Counter(owner.city for owner in trade.owners for _ in trade.of(owner))
    target = f"{place.directory}/cities.txt"
    join = f"FROM {trade.owners_table} o JOIN {trade.table} e ON e.{trade.owner}_id = o.id"
    return report(
        place,
        "cities.txt",
        [f"{city}|{counts[city]}" for city in sorted(counts)],
        _ask(db, f"SELECT o.city, count(*) {join} GROUP BY o.city ORDER BY o.city"),
        says=(
            f"Write to {target} for each city of the {trade.owners_table} the number of {trade.table}: city and number, cities in alphabetical order, cities without {trade.table} left out.",
            f"Count the {trade.table} by the city of their {trade.owner} and put city and count into {target}, sorted by city; a city with no {trade.table} has no line.",
            f"How many {trade.table} come from which city? City and count in {target}, from A to Z by city, please, and only cities that have some.",
        ),
        thought="The city is in the owners' table, so join and count per city.",
        slips=(
            (
                "analysis_error",
                _ask(db, f"SELECT city, count(*) FROM {trade.owners_table} GROUP BY city ORDER BY city"),
                "One row per city, counted: that gives the numbers.",
            ),
            (
                "requirement_violation",
                _ask(db, f"SELECT o.city || ': ' || count(*) {join} GROUP BY o.city ORDER BY o.city"),
                "A colon and a blank read better than a bar.",
            ),
        ),
    )


def _idle(rng: random.Random, trade: Trade, db: str, place: Place) -> Step:
    status = rng.choice(trade.entries).status
    lines = sorted(owner.name for owner in trade.owners if not any(row.status == status for row in trade.of(owner)))
    target = f"{place.directory}/without-{status}.txt"
    return report(
        place,
        f"without-{status}.txt",
        lines,
        _ask(
            db,
            f"SELECT name FROM {trade.owners_table} WHERE id NOT IN (SELECT {trade.owner}_id FROM {trade.table} WHERE status = '{status}') ORDER BY name",
        ),
        says=(
            f"Write to {target} the names of the {trade.owners_table} that have no entry with status `{status}` in {trade.table} (also those without any entry), in alphabetical order.",
            f"List all {trade.owners_table} for whom {trade.table} holds nothing with status `{status}`, whether or not there are other entries: just the names in {target}, sorted.",
            f"Who has nothing with status `{status}` in {trade.table}? The names, sorted from A to Z, should be in {target}; {trade.owners_table} with no {trade.table} at all belong there too.",
        ),
        thought="Everybody whose id is not among the owners of such entries.",
        slips=(
            (
                "analysis_error",
                _ask(
                    db,
                    f"SELECT DISTINCT o.name FROM {trade.owners_table} o JOIN {trade.table} e ON e.{trade.owner}_id = o.id WHERE e.status <> '{status}' ORDER BY o.name",
                ),
                "Entries with another status lead to the right people.",
            ),
            (
                "command_error",
                _ask(
                    db,
                    f"SELECT name FROM {trade.owners_table} WHERE id NOT IN (SELECT id FROM {trade.table} WHERE status = '{status}') ORDER BY name",
                ),
                "NOT IN over the ids of those entries.",
            ),
        ),
    )


def _month(rng: random.Random, trade: Trade, db: str, place: Place) -> Step:
    month = Counter(row.day[:7] for row in trade.entries).most_common(1)[0][0]
    rows = defaultdict(list)
    for row in trade.entries:
        if row.day.startswith(month):
            rows[row.status].append(row.amount)
    target = f"{place.directory}/month.txt"
    select, where = f"SELECT status, count(*), sum({trade.measure}) FROM {trade.table}", f"WHERE day LIKE '{month}-%'"
    return report(
        place,
        "month.txt",
        [f"{status}|{len(rows[status])}|{sum(rows[status])}" for status in sorted(rows)],
        _ask(db, f"{select} {where} GROUP BY status ORDER BY status"),
        says=(
            f"Write to {target} for the {trade.table} of {month}, for each status that occurs: status, number of {trade.table}, sum of {trade.measure}, in alphabetical order of the status.",
            f"Summarise {month} in {target}: by status, the number of {trade.table} and their total {trade.measure} (three fields, status first), ordered by status.",
            f"What happened in {month}? For every status found in that month's {trade.table} I want a line of status, count and total {trade.measure} in {target}, statuses from A to Z.",
        ),
        thought="Days are ISO dates, so the month is a prefix; group by status.",
        slips=(
            (
                "analysis_error",
                _ask(db, f"{select} GROUP BY status ORDER BY status"),
                "Grouping by status gives these lines.",
            ),
            (
                "command_error",
                _ask(db, f"{select} WHERE day = '{month}' GROUP BY status ORDER BY status"),
                "The day column compared with the month.",
            ),
        ),
    )


def _latest(rng: random.Random, trade: Trade, db: str, place: Place) -> Step:
    last = {owner.name: max(trade.of(owner), key=lambda row: row.day) for owner in trade.owners if trade.of(owner)}
    target = f"{place.directory}/latest.txt"
    join = f"FROM {trade.owners_table} o JOIN {trade.table} e ON e.{trade.owner}_id = o.id GROUP BY o.id"
    return report(
        place,
        "latest.txt",
        [f"{who}|{last[who].day}|{last[who].amount}" for who in sorted(last)],
        _ask(db, f"SELECT o.name, max(e.day), e.{trade.measure} {join} ORDER BY o.name"),
        says=(
            f"Write to {target} the latest of the {trade.table} for each of the {trade.owners_table} that has any: name, day, {trade.measure} of that entry, sorted by name.",
            f"Look up everybody's most recent entry in {trade.table} and save name, its day and its {trade.measure} to {target}, ordered by name; {trade.owners_table} without {trade.table} are left out.",
            f"When was the last time for each of the {trade.owners_table}? Name, the day of the newest entry in {trade.table} and the {trade.measure} of that same entry go to {target}, sorted by name, without those that have none.",
        ),
        thought="With a single max() SQLite takes the other columns from the row of the maximum.",
        slips=(
            (
                "analysis_error",
                _ask(db, f"SELECT o.name, max(e.day), max(e.{trade.measure}) {join} ORDER BY o.name"),
                "The maximum of both columns belongs to the latest entry.",
            ),
            (
                "requirement_violation",
                _ask(db, f"SELECT o.name, max(e.day), e.{trade.measure} {join} ORDER BY 2 DESC"),
                "The most recent one comes first.",
            ),
        ),
    )


_JOBS: tuple[Callable[[random.Random, Trade, str, Place], Step], ...] = (_top, _cities, _idle, _month, _latest)
