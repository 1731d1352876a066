"""A chain over a separated list without header: pick columns, paste one on, sort, translate, tally."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "text-columns"
category = "text processing"
tools: tuple[str, ...] = ("awk", "cut", "paste", "sort", "tr", "uniq")
depths = range(1, 6)

Row = tuple[str, ...]
_SEPARATORS = {":": "a colon", ";": "a semicolon", "|": "a vertical bar", "%": "a percent sign"}


@dataclass
class Scene:
    """The list as it stands after the steps so far."""

    rng: random.Random
    at: str
    file: str
    separator: str
    columns: Row
    rows: list[Row]
    extra_file: str
    extra: list[str]
    names: list[str]
    outputs: list[str] = field(default_factory=list)

    def advance(self, columns: Row, rows: list[Row], separator: str) -> tuple[str, str, str]:
        """Make these rows the current list; gives input name, output name and the check of the new file."""
        source, target = self.file, self.names.pop()
        self.file, self.columns, self.rows, self.separator = target, columns, rows, separator
        self.outputs.append(target)
        return source, target, lines_are(f"{self.at}/{target}", [separator.join(row) for row in rows])


def _pick(scene: Scene) -> Step:
    columns = ("extension", "login", "team")
    old, s = scene.columns, scene.separator
    where = [old.index(column) for column in columns]
    rows = [tuple(row[index] for index in where) for row in scene.rows]
    source, target, check = scene.advance(columns, rows, s)
    numbers = ", ".join(f"${index + 1}" for index in where)
    cut = ",".join(str(index + 1) for index in where)
    return Step(
        says=(
            f"Write the columns extension, login and team of {scene.at}/{source}, in this order and separated by `{s}` again, to {scene.at}/{target}.",
            f"From {source} I only need extension, login and team. Put them in that order, with the same separator `{s}`, into {scene.at}/{target}.",
            f"Reduce {source} to extension, then login, then team (`{s}` between them as before); the result belongs in {scene.at}/{target}.",
        ),
        thought="The order changes, so cut will not do; awk prints the fields in any order.",
        command=f"awk -F'{s}' -v OFS='{s}' '{{print {numbers}}}' {source} > {target}",
        checks=(check,),
        mistakes=(
            slip(
                "analysis_error",
                f"cut -d'{s}' -f{cut} {source} > {target}",
                "cut prints the fields in the order I list them.",
            ),
            slip(
                "command_error",
                f"awk -F'{s}' '{{print {numbers}}}' {source} > {target}",
                "awk keeps the separator it was told.",
            ),
            slip(
                "hallucination",
                f"cut -d'{s}' --columns=extension,login,team {source} > {target}",
                "cut knows columns by name.",
            ),
        ),
    )


def _attach(scene: Scene) -> Step:
    s = scene.separator
    rows = [(*row, value) for row, value in zip(scene.rows, scene.extra, strict=True)]
    source, target, check = scene.advance((*scene.columns, "badge"), rows, s)
    extra = scene.extra_file
    return Step(
        says=(
            f"Append line n of {scene.at}/{extra} to line n of {scene.at}/{source} as a last column, after a `{s}`, and write the result to {scene.at}/{target}.",
            f"Add the badge numbers as a last column: {extra} has one per line, in the order of {source}. Separate with `{s}` and save as {scene.at}/{target}.",
            f"The lines of {extra} belong behind those of {source}, one to one, with a `{s}` between; that makes {scene.at}/{target}.",
        ),
        thought="Both files have the same order, so paste with the right delimiter does it.",
        command=f"paste -d'{s}' {source} {extra} > {target}",
        checks=(check,),
        mistakes=(
            slip("command_error", f"paste {source} {extra} > {target}", "paste joins the lines of both files."),
            slip(
                "analysis_error",
                f"paste -d'{s}' {extra} {source} > {target}",
                "The badge is the key, so it comes first.",
            ),
            slip("requirement_violation", f"cat {source} {extra} > {target}", "Both files have to end up in one."),
        ),
    )


def _order(scene: Scene) -> Step:
    s = scene.separator
    key = scene.columns.index("extension")
    rows = sorted(scene.rows, key=lambda row: -int(row[key]))
    source, target, check = scene.advance(scene.columns, rows, s)
    option = f"-k{key + 1},{key + 1}"
    return Step(
        says=(
            f"Sort {scene.at}/{source} by extension as a number, largest first, into {scene.at}/{target}.",
            f"Put the lines of {source} in order of their extension, the highest number on top, and save that as {scene.at}/{target}.",
            f"I'd like {source} with the largest extension number first, going down from there, in {scene.at}/{target}.",
        ),
        thought="Numeric, reversed, on one field only.",
        command=f"sort -t'{s}' {option}nr {source} > {target}",
        checks=(check,),
        mistakes=(
            slip("command_error", f"sort -t'{s}' {option}r {source} > {target}", "-r turns the order round."),
            slip("requirement_violation", f"sort -t'{s}' {option}n {source} > {target}", "Numbers sort with -n."),
            slip(
                "analysis_error", f"sort -nr {source} | tac > {target}", "Sorting the whole line by number is enough."
            ),
        ),
    )


def _translate(scene: Scene) -> Step:
    old = scene.separator
    new = scene.rng.choice([mark for mark in (",", "=", "~") if mark != old])
    rows = [tuple(cell.upper() for cell in row) for row in scene.rows]
    source, target, check = scene.advance(scene.columns, rows, new)
    return Step(
        says=(
            f"Copy {scene.at}/{source} to {scene.at}/{target} with all letters in upper case and every `{old}` replaced by `{new}`.",
            f"The next program wants capitals and `{new}` where {source} has `{old}`: save it that way, everything else the same, as {scene.at}/{target}.",
            f"Make {scene.at}/{target} out of {source}: same text, but letters in capitals and each `{old}` turned into `{new}`.",
        ),
        thought="tr maps both at once.",
        command=f"tr 'a-z{old}' 'A-Z{new}' < {source} > {target}",
        checks=(check,),
        mistakes=(
            slip("requirement_violation", f"tr 'a-z' 'A-Z' < {source} > {target}", "Capitals are the visible part."),
            slip(
                "command_error",
                f"sed 's/{old}/{new}/' {source} | tr 'a-z' 'A-Z' > {target}".replace("s/|/", "s/[|]/"),
                "sed replaces it.",
            ),
            slip("hallucination", f"tr --upper '{old}' '{new}' {source} > {target}", "tr has an option for capitals."),
        ),
    )


def _tally(scene: Scene) -> Step:
    s = scene.separator
    key = scene.columns.index("team")
    counts = Counter(row[key] for row in scene.rows)
    rows: list[Row] = [
        (str(number), team) for team, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    source, target, check = scene.advance(("count", "team"), rows, " ")
    pipe = f"cut -d'{s}' -f{key + 1} {source} | sort | uniq -c"
    order = "LC_ALL=C sort -k1,1nr -k2,2"
    return Step(
        says=(
            f"Count how often each team occurs in {scene.at}/{source} and write `COUNT TEAM` lines (one space, no padding) to {scene.at}/{target}, largest "
            "count first, equal counts by team in byte order.",
            f"How many lines of {source} has each team? One `COUNT TEAM` line per team, a single space between, in {scene.at}/{target}; biggest team on top, "
            "alphabetical where they are equal.",
            f"Tell me the size of each team in {source}: lines like `7 NAME` in {scene.at}/{target}, no leading blanks, largest first and ties from a to z; "
            "spell the team as the file does.",
        ),
        thought="Cut the column, count equal lines, order by count then name, and drop the padding of uniq.",
        command=f"{pipe} | {order} | awk '{{print $1, $2}}' > {target}",
        checks=(check,),
        mistakes=(
            slip("requirement_violation", f"{pipe} | {order} > {target}", "uniq -c gives count and team."),
            slip("analysis_error", f"{pipe} | awk '{{print $1, $2}}' > {target}", "It is sorted already."),
            slip(
                "command_error",
                f"{pipe.replace('| sort ', '')} | {order} | awk '{{print $1, $2}}' > {target}",
                "uniq finds the repeats.",
            ),
        ),
    )


_CHAIN: tuple[Callable[[Scene], Step], ...] = (_pick, _attach, _order, _translate, _tally)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Consecutive links of the chain; each step works on what the one before it wrote."""
    separator = rng.choice(sorted(_SEPARATORS))
    count = rng.randint(24, 40)
    teams = words.distinct(rng, words.TEAMS, 5)
    logins = [f"{words.login(rng)}{n}" for n in rng.sample(range(10, 99), count)]
    extensions = rng.sample(range(10, 100), count // 2) + rng.sample(range(100, 20000), count - count // 2)
    rng.shuffle(extensions)
    rows: list[Row] = [
        (login, rng.choice(words.CITIES), team, str(extension))
        for login, extension, team in zip(logins, extensions, _skewed(rng, teams, count), strict=True)
    ]
    source, extra_file, *targets = [
        f"{stem}.{rng.choice(('txt', 'lst', 'dat'))}" for stem in words.distinct(rng, words.STEMS, 7)
    ]
    extra = [f"b{words.token(rng, 5)}" for _ in rows]
    columns = ("login", "city", "team", "extension")
    scene = Scene(rng, place.directory, source, separator, columns, rows, extra_file, extra, targets)
    start = rng.randint(0, len(_CHAIN) - depth)
    steps = [make(scene) for make in _CHAIN[start : start + depth]]
    files = [
        text_file(place, source, "".join(separator.join(row) + "\n" for row in rows)),
        text_file(place, extra_file, "".join(value + "\n" for value in extra)),
    ]
    about = f"{source}, with the columns {', '.join(columns)} separated by {_SEPARATORS[separator]} (`{separator}`)"
    return assemble(
        family=name,
        title="Rework a staff list",
        place=place,
        openings=(
            f"The directory {place.directory} holds a list of staff without a header line in {about}; {extra_file} lists their badge numbers.",
            f"In {place.directory} there is our phone list, {about}. There is no header. The badge numbers are in {extra_file} beside it.",
            f"I keep the staff list in {place.directory}: {about}, no header, and the badges in {extra_file}.",
        ),
        steps=steps,
        files=files,
        initial_checks=(
            present(place.directory, [source, extra_file]),
            *(absent(f"{place.directory}/{file}") for file in scene.outputs),
        ),
        guards=tuple(unchanged(file.path, file.data) for file in files),
    )


def _skewed(rng: random.Random, teams: list[str], count: int) -> list[str]:
    """Teams of different size, the last in the alphabet largest, so that order by size is never order by name."""
    ordered = sorted(teams)
    sized = [team for size, team in enumerate(ordered, 2) for _ in range(size)]
    chosen = [*sized, *(rng.choice(ordered[-2:]) for _ in range(count - len(sized)))]
    rng.shuffle(chosen)
    return chosen
