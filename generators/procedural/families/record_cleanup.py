"""Rows typed by hand: good ones and bad ones apart, spellings made alike, people made unrecognisable."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "record-cleanup"
category = "record clean-up"
tools: tuple[str, ...] = ("awk", "sed", "sort", "uniq")
depths = range(1, 6)

_HEADER = "email;day;city;amount"


@dataclass(frozen=True)
class Row:
    """One line. `fault` is what is wrong with it, or empty."""

    email: str
    day: str
    city: str
    amount: str
    fault: str

    def __str__(self) -> str:
        return f"{self.email};{self.day};{self.city};{self.amount}"


@dataclass(frozen=True)
class Scene:
    """Rows in file order; the faulty ones have exactly one fault each."""

    at: str
    file: str
    rows: list[Row]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"


_FAULT = (
    'f = $1 !~ /^[^@ ]+@[^@ ]+$/ ? "email" : $2 !~ /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]$/ ? "day" : '
    '$4 !~ /^[0-9]+$/ ? "amount" : ""'
)
_RULES = (
    "a row is bad if its email hasn't exactly one @ with something on both sides and no blank, its day isn't of the form YYYY-MM-DD (digits only), "
    "or its amount isn't digits alone"
)


def _scene(rng: random.Random, place: Place) -> Scene:
    cities = words.distinct(rng, words.CITIES, 4)
    faults = [
        "",
        "email",
        "",
        "day",
        "",
        "amount",
        *rng.choices(("", "", "email", "day", "amount"), k=rng.randint(18, 28)),
    ]
    rng.shuffle(faults)
    rows = []
    for fault in ["", *faults, "", "amount"]:
        email, day, amount = _email(rng), words.day(rng), str(rng.randint(3, 900))
        if fault == "email":
            email = rng.choice((email.replace("@", " at "), email.replace("@", ""), email.replace("@", "@@")))
        if fault == "day":
            day = rng.choice((day.replace("-", "/"), ".".join(reversed(day.split("-"))), day[2:]))
        if fault == "amount":
            amount = rng.choice((f"-{amount}", f"{amount}.50", f"{amount} EUR", ""))
        city = rng.choice((str.title, str.upper, str.lower, " {}".format, "{} ".format))(rng.choice(cities))
        rows.append(Row(email, day, city, amount, fault))
    rows[-1] = replace(rows[-1], amount=f"{rng.randint(3, 900)} EUR")
    return Scene(place.directory, f"{rng.choice(words.STEMS)}-{rng.choice(words.PEOPLE)}.csv", rows)


def _email(rng: random.Random) -> str:
    """An address with capitals in some places."""
    who = f"{rng.choice(words.PEOPLE)}.{rng.choice(words.SURNAMES)}@{rng.choice(words.PROJECTS)}.example.org"
    return rng.choice((str.title, str.lower))(who)


def _good(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".csv")
    return answers.step(
        out,
        [_HEADER, *(str(row) for row in scene.rows if not row.fault)],
        f"awk -F';' 'NR == 1 {{print; next}} {{{_FAULT}}} f == \"\"' {scene.file}",
        says=(
            f"Copy the header and all good rows of {scene.path} unchanged and in their order to {out}; {_RULES}.",
            f"Keep what is usable of {scene.path} in {out}, header included, rows as they are and in the same order. The rule: {_RULES}.",
            f"I only want the good rows of {scene.path}, with the header, untouched and in order, in {out}. To be clear: {_RULES}.",
        ),
        thought="One pattern for each column, and a row must match all of them.",
        slips=(
            (
                "requirement_violation",
                f"awk -F';' 'NR > 1 {{{_FAULT}}} NR > 1 && f == \"\"' {scene.file}",
                "The header is no row.",
            ),
            (
                "analysis_error",
                "awk -F';' 'NR == 1 || ($1 ~ /@/ && $2 ~ /^[0-9]+-/ && $4 + 0 > 0)' " + scene.file,
                "An @, a dash and a number show that a row is good.",
            ),
        ),
    )


def _reasons(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = [f"{n} {row.fault}" for n, row in enumerate(scene.rows, 2) if row.fault]
    return answers.step(
        out,
        found,
        f"awk -F';' 'NR > 1 {{{_FAULT}; if (f != \"\") print NR, f}}' {scene.file}",
        says=(
            f"Write `LINE COLUMN` for each bad row of {scene.path} to {out}: its line number in the file (the header is line 1) and email, day or amount, whichever is wrong, ascending; {_RULES}. No row has two faults.",
            f"Which rows of {scene.path} are bad, and why? `LINE COLUMN` in {out}, where LINE counts from the header as 1 and COLUMN is email, day or amount, in file order. Here {_RULES}; there's never more than one fault in a row.",
            f"List the bad rows of {scene.path} in {out} as line number (header is 1), blank, faulty column (email, day, amount), from top to bottom. Note that {_RULES}, and that each has only one fault.",
        ),
        thought="The same patterns, and the line number that awk keeps anyway.",
        slips=(
            (
                "analysis_error",
                f"tail -n +2 {scene.file} | awk -F';' '{{{_FAULT}; if (f != \"\") print NR, f}}'",
                "Without the header the rows can be counted.",
            ),
            (
                "command_error",
                f"awk -F';' 'NR > 1 {{{_FAULT}; if (f == \"\") print NR, f}}' {scene.file}",
                "An empty f is a fault.",
            ),
        ),
    )


def _fault_counts(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    counts = Counter(row.fault or "good" for row in scene.rows)
    body = f'{{{_FAULT}; n[f == "" ? "good" : f]++}} END {{for (k in n) print k, n[k]}}'
    return answers.step(
        out,
        [f"{kind} {count}" for kind, count in sorted(counts.items())],
        f"awk -F';' 'NR > 1 {body}' {scene.file} | sort",
        says=(
            f"Count the rows of {scene.path} by state and write `STATE COUNT` lines to {out}, sorted by state: amount, day, email for rows in which that column is wrong, good for the others; {_RULES}, and no row has two faults.",
            f"How many rows of {scene.path} are good and how many have a wrong amount, day or email? `STATE COUNT` in {out} with the states amount, day, email, good in this order. {_RULES.capitalize()}; two faults in a row don't occur.",
            f"I'd like numbers for {scene.path} in {out}: lines `amount N`, `day N`, `email N`, `good N` in this order, for rows with that one column wrong and for good ones. By the way, {_RULES}.",
        ),
        thought="The state of each row, counted.",
        slips=(
            ("command_error", f"awk -F';' '{body}' {scene.file} | sort", "awk goes through all rows."),
            (
                "requirement_violation",
                f"awk -F';' 'NR > 1 {body}' {scene.file} | grep -v good | sort",
                "Only the bad ones have a state.",
            ),
        ),
    )


def _cities(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    counts = Counter(row.city.strip().lower() for row in scene.rows)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    trimmed = "sed 's/^ *//; s/ *$//'"
    tail = "sort | uniq -c | sort -k1,1nr -k2 | awk '{print $2, $1}'"
    cut = f"tail -n +2 {scene.file} | cut -d';' -f3"
    return answers.step(
        out,
        [f"{city} {count}" for city, count in ranked],
        f"{cut} | {trimmed} | tr A-Z a-z | {tail}",
        says=(
            f"Count all rows of {scene.path}, good or bad, by city, ignoring case and blanks around the name, and write `CITY COUNT` in lower case to {out}, most rows first, ties by name.",
            f"How often does each city occur in {scene.path}? Capitals and blanks around it don't matter, all rows count. `CITY COUNT`, city in lower case, highest first and then by name, in {out}.",
            f"The city in {scene.path} is spelt in all ways. Over all rows, lower-cased and trimmed, how many rows per city? `CITY COUNT`, most first, equal ones by name, in {out}.",
        ),
        thought="Trim, lower, sort, count.",
        slips=(
            ("analysis_error", f"{cut} | {trimmed} | {tail}", "Trimming makes equal names equal."),
            (
                "command_error",
                f"{cut} | {trimmed} | tr A-Z a-z | {tail.removeprefix('sort | ')}",
                "uniq -c counts the names.",
            ),
        ),
    )


def _anonymous(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".csv")
    lines = [f"person{n:03d};{row.day};{row.city};{row.amount}" for n, row in enumerate(scene.rows, 1)]
    body = 'NR > 1 {$1 = sprintf("person%03d", NR - 1)} {print}'
    return answers.step(
        out,
        [_HEADER, *lines],
        f"awk -F';' -v OFS=';' '{body}' {scene.file}",
        says=(
            f"Copy {scene.path} to {out} with the email of each row replaced by person001, person002 and so on, counting rows from the top; the header and everything else stay as they are.",
            f"Make a copy of {scene.path} without addresses as {out}: row by row the email becomes person001, person002, ... Header, the other columns and the order don't change.",
            f"Nobody should be recognisable in {out}: the same rows as {scene.path}, bad ones too, but person001, person002, ... from top to bottom instead of the emails. The header stays.",
        ),
        thought="Replace the first field by a running number and keep the separator.",
        slips=(
            ("command_error", f"awk -F';' '{body}' {scene.file}", "awk writes fields with the separator it read."),
            (
                "analysis_error",
                f"awk -F';' -v OFS=';' '{body.replace('NR - 1', 'NR')}' {scene.file}",
                "NR numbers the rows.",
            ),
        ),
    )


_STEPS = (_good, _reasons, _fault_counts, _cities, _anonymous)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent views of one file."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    return answers.piece(
        family=name,
        title="Clean up records",
        openings=(
            f"{scene.path} has the columns {_HEADER} (header first, semicolons, no quoting).",
            f"The rows in {scene.path} were typed by hand, columns {_HEADER} with that header, separated by semicolons.",
            f"Here is a messy file, {scene.path}: first the header {_HEADER}, then rows in the same form.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, "".join(f"{line}\n" for line in (_HEADER, *scene.rows)))],
    )
