"""A chain over a CSV table: drop repeats, keep some rows, join a second table, sum up, pick the largest."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "csv-filter"
category = "data processing"
tools: tuple[str, ...] = ("awk", "cut", "head", "sort")
depths = range(1, 6)

Row = tuple[str, ...]


@dataclass(frozen=True)
class Theme:
    """What the rows are about. Columns: id, day, who, where, what, amount."""

    table: str
    prefix: str
    header: Row
    people: str
    what: tuple[str, ...]


_THEMES = (
    Theme("orders", "ord", ("order_id", "day", "customer", "city", "product", "quantity"), "customers", words.PRODUCTS),
    Theme("trips", "trip", ("trip_id", "day", "driver", "city", "project", "kilometres"), "drivers", words.PROJECTS),
    Theme("calls", "call", ("call_id", "day", "agent", "city", "topic", "minutes"), "agents", words.STEMS),
    Theme(
        "readings", "rd", ("reading_id", "day", "observer", "city", "instrument", "value"), "observers", words.PRODUCTS
    ),
    Theme("bookings", "bk", ("booking_id", "day", "guest", "city", "purpose", "nights"), "guests", words.STEMS),
)


@dataclass
class Scene:
    """The table as it stands after the steps so far."""

    rng: random.Random
    at: str
    theme: Theme
    file: str
    header: Row
    rows: list[Row]
    people: dict[str, Row]
    people_file: str
    names: list[str]
    number: int = 5
    """Index of the column with numbers."""
    outputs: list[str] = field(default_factory=list)

    def advance(self, header: Row, rows: list[Row], stem: str) -> tuple[str, str, tuple[str, ...]]:
        """Make these rows the current table; gives input name, output name and the check of the new file."""
        source, target = self.file, f"{self.names.pop()}-{stem}.csv"
        self.file, self.header, self.rows = target, header, rows
        self.outputs.append(target)
        return source, target, (lines_are(f"{self.at}/{target}", [",".join(row) for row in (header, *rows)]),)


def _unique(scene: Scene) -> Step:
    first: dict[str, Row] = {}
    for row in scene.rows:
        first.setdefault(row[0], row)
    source, target, checks = scene.advance(scene.header, list(first.values()), "clean")
    key = scene.header[0]
    return Step(
        says=(
            f"Copy {scene.at}/{source} to {scene.at}/{target}, keeping the header and only the first row of each {key}, in the order of the file.",
            f"Clean {source} of repeats: when a {key} comes again, the later rows go. Header and order stay, the result is {scene.at}/{target}.",
            f"Some {key} values occur more than once in {source}; I only want the first row of each, header and order as they are, in {scene.at}/{target}.",
        ),
        thought="A set of seen ids in awk keeps the first row and the order.",
        command=f"awk -F, '!seen[$1]++' {source} > {target}",
        checks=checks,
        mistakes=(
            slip("command_error", f"uniq {source} > {target}", "uniq removes repeated rows."),
            slip(
                "requirement_violation", f"sort -t, -k1,1 -u {source} > {target}", "sort -u leaves one row for each id."
            ),
            slip(
                "analysis_error",
                f"awk -F, '!seen[$2]++' {source} > {target}",
                "The second column tells the repeats apart.",
            ),
        ),
    )


def _select(scene: Scene) -> Step:
    cities = sorted({row[3] for row in scene.rows}, key=lambda city: -sum(row[3] == city for row in scene.rows))[:3]
    city = scene.rng.choice(cities)
    amounts = sorted(int(row[5]) for row in scene.rows if row[3] == city)
    least = amounts[len(amounts) // 3]
    kept = [row for row in scene.rows if row[3] == city and int(row[5]) >= least]
    amount = scene.header[5]
    source, target, checks = scene.advance(scene.header, kept, city)
    return Step(
        says=(
            f"Write the header and all rows of {scene.at}/{source} with city {city} and {amount} of at least {least} to {scene.at}/{target}, in their order.",
            f"From {source} keep the header and the {city} rows whose {amount} is {least} or more, order unchanged, as {scene.at}/{target}.",
            f"I only need {city} from {source}, and there only what has {amount} {least} and up: same header, same order, in {scene.at}/{target}.",
        ),
        thought="Compare the city exactly and the amount as a number, and let the first line through.",
        command=f"awk -F, 'NR == 1 || ($4 == \"{city}\" && $6 >= {least})' {source} > {target}",
        checks=checks,
        mistakes=(
            slip(
                "analysis_error",
                f"awk -F, 'NR == 1 || ($4 == \"{city}\" && $6 > {least})' {source} > {target}",
                f"More than {least} is meant.",
            ),
            slip(
                "requirement_violation",
                f"awk -F, '$4 == \"{city}\" && $6 >= {least}' {source} > {target}",
                "Only matching rows belong there.",
            ),
            slip(
                "command_error",
                f"awk -F, 'NR == 1 || ($4 = \"{city}\" && $6 >= {least})' {source} > {target}",
                "Both conditions must hold.",
            ),
            slip(
                "hallucination", f"csvgrep -c city -m {city} {source} > {target}", "A CSV tool filters by column name."
            ),
        ),
    )


def _join(scene: Scene) -> Step:
    header = (*scene.header, "name", "team")
    rows = [(*row, *scene.people[row[2]]) for row in scene.rows if row[2] in scene.people]
    key, lookup = scene.header[2], scene.people_file
    source, target, checks = scene.advance(header, rows, "named")
    program = 'BEGIN {OFS = ","} NR == FNR {p[$1] = $2 OFS $3; next} $3 in p {print $0, p[$3]}'
    return Step(
        says=(
            f"Append the columns name and team of {scene.at}/{lookup} to {scene.at}/{source}, matched by {key}, and write header and rows in their "
            f"order to {scene.at}/{target}; drop rows whose {key} is not in {lookup}.",
            f"Join {source} with {lookup} on {key}: {scene.at}/{target} has the same columns in the same row order with name and team "
            f"added at the end, heading included. Rows without a partner are left out.",
            f"I want to see names: take {source}, look each {key} up in {lookup} and add name and team as last columns (in the "
            f"header too). Unknown ones drop out, the order stays, the result is {scene.at}/{target}.",
        ),
        thought="Read the small table into an array first; then each row with a known key gets its two columns, header included.",
        command=f"awk -F, '{program}' {lookup} {source} > {target}",
        checks=checks,
        mistakes=(
            slip(
                "command_error",
                f"join -t, -1 3 -2 1 {source} {lookup} > {target}",
                "join matches field three with field one.",
            ),
            slip(
                "analysis_error", f"paste -d, {source} {lookup} > {target}", "The rows of both files belong together."
            ),
            slip(
                "requirement_violation",
                f"awk -F, '{program.replace('$3 in p {print $0, p[$3]}', 'FNR > 1 {print $0, p[$3]}')}' {lookup} {source} > {target}",
                "Each row gets its name and team.",
            ),
        ),
    )


def _totals(scene: Scene) -> Step:
    column = len(scene.header) - 1 if "team" in scene.header else 4
    key, amount = scene.header[column], scene.header[5]
    sums: dict[str, int] = {}
    for row in scene.rows:
        sums[row[column]] = sums.get(row[column], 0) + int(row[5])
    rows: list[Row] = [
        (value, str(total)) for value, total in sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    ]
    source, target, checks = scene.advance((key, "total"), rows, "totals")
    scene.number = 1
    program = f'NR > 1 {{t[${column + 1}] += $6}} END {{for (k in t) print k "," t[k]}}'
    order = "LC_ALL=C sort -t, -k2,2nr -k1,1"
    return Step(
        says=(
            f"Sum {amount} for each {key} of {scene.at}/{source} into {scene.at}/{target}: header `{key},total`, then one row each, largest total first, "
            f"equal totals by {key} in byte order.",
            f"Total up {amount} by {key} from {source} and save it as {scene.at}/{target} with the heading `{key},total`, highest total on top and "
            f"ties in alphabetical order of {key}.",
            f"What is the sum of {amount} per {key} in {source}? As CSV in {scene.at}/{target}, first line `{key},total`, biggest first; "
            f"where totals are the same, {key} from a to z.",
        ),
        thought="Sum in an array past the header, sort by total then key, and put the new header in front.",
        command=f"{{ echo {key},total; awk -F, '{program}' {source} | {order}; }} > {target}",
        checks=checks,
        mistakes=(
            slip(
                "requirement_violation",
                f"awk -F, '{program}' {source} | {order} > {target}",
                "The sums are what matters.",
            ),
            slip(
                "analysis_error",
                f"{{ echo {key},total; awk -F, '{program.replace('+= $6', '+= 1')}' {source} | {order}; }} > {target}",
                "One per row.",
            ),
            slip(
                "command_error",
                f"{{ echo {key},total; awk -F, '{program.replace('+= $6', '= $6')}' {source} | {order}; }} > {target}",
                "Each row gives its value to the key.",
            ),
        ),
    )


def _largest(scene: Scene) -> Step:
    key, column = scene.header[0], scene.number
    amount = scene.header[column]
    count = min(scene.rng.randint(2, 3), max(1, len(scene.rows) - 1))
    ranked = sorted(scene.rows, key=lambda row: (-int(row[column]), row[0]))[:count]
    source, target = scene.file, f"{scene.names.pop()}.txt"
    scene.outputs.append(target)
    order = f"LC_ALL=C sort -t, -k{column + 1},{column + 1}nr -k1,1"
    lines = [row[0] for row in ranked]
    rows = f"{count} rows" if count > 1 else "row"
    return Step(
        says=(
            f"Write the {key} of the {rows} of {scene.at}/{source} with the largest {amount} to {scene.at}/{target}, one per line, largest first, equal "
            f"values by {key} in byte order; no header.",
            f"Put the {key} of the top {rows} by {amount} in {source} into {scene.at}/{target}: largest first, ties by {key} as text, no heading, "
            "nothing else on the line.",
            f"Just the {key} of the {rows} with the highest {amount} in {source}, highest first (same value: {key} that sorts first), one a line "
            f"without a heading, in {scene.at}/{target}.",
        ),
        thought="Skip the header, sort numerically downwards with the key as tie-break, cut the first column.",
        command=f"tail -n +2 {source} | {order} | head -n {count} | cut -d, -f1 > {target}",
        checks=(lines_are(f"{scene.at}/{target}", lines),),
        mistakes=(
            slip(
                "requirement_violation",
                f"tail -n +2 {source} | {order} | head -n {count} > {target}",
                "The whole row says more.",
            ),
            slip(
                "analysis_error",
                f"tail -n +2 {source} | {order.replace('nr', 'n')} | head -n 1 | cut -d, -f1 > {target}",
                "The first one counts.",
            ),
            slip(
                "command_error",
                f"tail -n +2 {source} | {order} | head -n {count} | cut -f1 > {target}",
                "cut takes the first field.",
            ),
        ),
    )


_CHAIN: tuple[Callable[[Scene], Step], ...] = (_unique, _select, _join, _totals, _largest)


def _rows(rng: random.Random, theme: Theme, logins: list[str]) -> list[Row]:
    cities = words.distinct(rng, words.CITIES, 3)
    things = words.distinct(rng, theme.what, 6)
    start = rng.randint(1000, 8000)
    rows: list[Row] = [
        (
            f"{theme.prefix}-{start + n}",
            words.day(rng),
            rng.choice(logins),
            rng.choice(cities),
            rng.choice(things),
            str(rng.randint(1, 240)),
        )
        for n in rng.sample(range(200), rng.randint(36, 60))
    ]
    for row in rng.sample(rows[:20], rng.randint(4, 7)):
        rows.insert(rng.randint(25, len(rows)), (*row[:1], words.day(rng), *row[2:5], str(rng.randint(1, 240))))
    return rows


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Consecutive links of the chain; each step works on what the one before it wrote."""
    theme = rng.choice(_THEMES)
    logins = sorted({words.login(rng) for _ in range(12)})
    rows = _rows(rng, theme, logins)
    people = {login: (words.full_name(rng), rng.choice(words.TEAMS)) for login in rng.sample(logins, len(logins) - 3)}
    table, people_file = f"{theme.table}-{rng.randint(2019, 2024)}.csv", f"{theme.people}.csv"
    scene = Scene(
        rng,
        place.directory,
        theme,
        table,
        theme.header,
        rows,
        dict(people),
        people_file,
        words.distinct(rng, words.STEMS, 6),
    )
    start = rng.randint(0, len(_CHAIN) - depth)
    steps = [make(scene) for make in _CHAIN[start : start + depth]]
    lookup = [(theme.header[2], "name", "team"), *((login, *rest) for login, rest in people.items())]
    files = [
        text_file(place, table, "".join(",".join(row) + "\n" for row in (theme.header, *rows))),
        text_file(place, people_file, "".join(",".join(row) + "\n" for row in lookup)),
    ]
    return assemble(
        family=name,
        title=f"Work through {theme.table}",
        place=place,
        openings=(
            f"The directory {place.directory} holds the {theme.table} as plain CSV (no quoting, first line is the header).",
            f"I have our {theme.table} in {place.directory}, simple comma-separated files with a header line and no quotes.",
            f"It's about the {theme.table} in {place.directory}: ordinary CSV, header first, nothing quoted.",
        ),
        steps=steps,
        files=files,
        initial_checks=(
            present(place.directory, [table, people_file]),
            *(absent(f"{place.directory}/{file}") for file in scene.outputs),
        ),
        guards=(unchanged(files[0].path, files[0].data),),
    )
