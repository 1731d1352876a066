"""Two lists that share a key: matches, rows without a partner, sums over a join, what was added and what went."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "table-joins"
category = "tables and joins"
tools: tuple[str, ...] = ("awk", "comm", "cut", "join", "sort")
depths = range(1, 6)

_TRADES = (
    ("suppliers", "deliveries"),
    ("members", "loans"),
    ("drivers", "trips"),
    ("rooms", "bookings"),
    ("tutors", "lessons"),
    ("shops", "returns"),
)


@dataclass(frozen=True)
class Scene:
    """Parents: key, name, city. Children: number, key, amount. Old: keys of last year. Nothing is sorted."""

    at: str
    parents_file: str
    children_file: str
    old_file: str
    parents: list[tuple[str, str, str]]
    children: list[tuple[str, str, int]]
    old: list[str]

    @property
    def parents_path(self) -> str:
        return f"{self.at}/{self.parents_file}"

    @property
    def children_path(self) -> str:
        return f"{self.at}/{self.children_file}"


def _scene(rng: random.Random, place: Place) -> Scene:
    parent, child = rng.choice(_TRADES)
    keys = [f"{parent[0].upper()}{n}" for n in rng.sample(range(100, 999), 16)]
    cities = words.distinct(rng, words.CITIES, 4)
    parents = [
        (key, who.title(), rng.choice(cities))
        for key, who in zip(keys[:13], words.distinct(rng, words.SURNAMES, 13), strict=True)
    ]
    used = [*keys[:10], *keys[13:]]
    owners = [*used, used[0], used[0], *rng.choices(used[:10], k=rng.randint(8, 16))]
    rng.shuffle(owners)
    while _side_by_side(owners, keys[13:]):  # the unknown ones' lines would be an answer that stands in the file
        rng.shuffle(owners)
    children = [
        (f"{n}", owner, rng.randint(5, 400))
        for n, owner in zip(rng.sample(range(1000, 9999), len(owners)), owners, strict=True)
    ]
    old = [*rng.sample(keys[:13], 9), *(f"{parent[0].upper()}0{n}" for n in rng.sample(range(10, 99), 3))]
    rng.shuffle(old)
    year = rng.randint(2017, 2023)
    return Scene(
        place.directory,
        f"{parent}-{year + 1}.txt",
        f"{child}-{year + 1}.txt",
        f"{parent}-{year}.txt",
        parents,
        children,
        old,
    )


def _side_by_side(owners: Sequence[str], some: Sequence[str]) -> bool:
    places = [place for place, owner in enumerate(owners) if owner in some]
    return places[-1] - places[0] == len(places) - 1


def _matched(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    names = {key: who for key, who, _ in scene.parents}
    rows = sorted((number, names[key], amount) for number, key, amount in scene.children if key in names)
    both = f"<(sort {scene.parents_file}) <(sort -k2,2 {scene.children_file})"
    return answers.step(
        out,
        [f"{number} {who} {amount}" for number, who, amount in rows],
        f"join -1 1 -2 2 -o 2.1,1.2,2.3 {both} | sort",
        says=(
            f"Write `NUMBER NAME AMOUNT` for each line of {scene.children_path} whose key is in {scene.parents_path} to {out}, sorted by number; lines with unknown keys are left out.",
            f"Put names to the lines of {scene.children_path}: look each key up in {scene.parents_path} and write `NUMBER NAME AMOUNT` to {out}, by number. Drop those with a key that isn't there.",
            f"In {out} I want {scene.children_path} with the name from {scene.parents_path} in place of the key, so `NUMBER NAME AMOUNT`, ordered by number and without the lines whose key nobody has.",
        ),
        thought="join wants both sides sorted by the key; -o picks the columns.",
        slips=(
            ("requirement_violation", f"join -a 2 -1 1 -2 2 -o 2.1,1.2,2.3 {both} | sort", "No line should get lost."),
            ("command_error", f"join -1 1 -2 1 -o 2.1,1.2,2.3 {both} | sort", "join matches the first fields."),
        ),
    )


def _idle(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    used = {key for _, key, _ in scene.children}
    child_keys, parent_keys = (
        f"<(cut -d ' ' -f2 {scene.children_file} | sort -u)",
        f"<(cut -d ' ' -f1 {scene.parents_file} | sort)",
    )
    return answers.step(
        out,
        sorted(key for key, _, _ in scene.parents if key not in used),
        f"comm -23 {parent_keys} {child_keys}",
        says=(
            f"Write the keys of {scene.parents_path} that no line of {scene.children_path} uses to {out}, one per line, sorted.",
            f"Which keys in {scene.parents_path} never occur in {scene.children_path}? Sorted, one a line, in {out}.",
            f"Find whoever is in {scene.parents_path} without a single line in {scene.children_path}; the keys in order, one a line, in {out}.",
        ),
        thought="Two sorted lists of keys, and comm gives what is only in the first.",
        slips=(
            ("analysis_error", f"comm -13 {parent_keys} {child_keys}", "What is only on one side has no partner."),
            ("command_error", f"comm -12 {parent_keys} {child_keys}", "comm leaves out what doesn't match."),
        ),
    )


def _orphans(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    known = {key for key, _, _ in scene.parents}
    return answers.step(
        out,
        [f"{number} {key} {amount}" for number, key, amount in scene.children if key not in known],
        f"awk 'NR == FNR {{known[$1]; next}} !($2 in known)' {scene.parents_file} {scene.children_file}",
        says=(
            f"Write the lines of {scene.children_path} whose key is missing in {scene.parents_path} to {out}, unchanged and in the order of the file.",
            f"Some lines of {scene.children_path} have a key that {scene.parents_path} doesn't know. Copy them as they are, in their order, to {out}.",
            f"Which lines in {scene.children_path} belong to nobody in {scene.parents_path}? Unchanged and as they come, in {out}.",
        ),
        thought="Remember the known keys, then print the lines whose key is not among them.",
        slips=(
            (
                "analysis_error",
                f"awk 'NR == FNR {{known[$1]; next}} $2 in known' {scene.parents_file} {scene.children_file}",
                "The condition selects by known keys.",
            ),
            (
                "command_error",
                f"awk 'NR == FNR {{known[$1]; next}} !($1 in known)' {scene.parents_file} {scene.children_file}",
                "The key is the first field.",
            ),
        ),
    )


def _totals(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    sums: Counter[str] = Counter()
    for _, key, amount in scene.children:
        sums[key] += amount
    rows = sorted(((sums[key], who) for key, who, _ in scene.parents), key=lambda row: (-row[0], row[1]))
    body = "NR == FNR {sum[$2] += $3; next} {print $2, sum[$1] + 0}"
    return answers.step(
        out,
        [f"{who} {total}" for total, who in rows],
        f"awk '{body}' {scene.children_file} {scene.parents_file} | sort -k2,2nr -k1,1",
        says=(
            f"Write `NAME TOTAL` for everybody in {scene.parents_path} to {out}, the total being the sum of the amounts in {scene.children_path} (0 without any), largest first, ties by name.",
            f"Add up the amounts in {scene.children_path} for each name in {scene.parents_path} and write `NAME TOTAL` to {out}, highest on top, equal totals by name. Those without lines get a 0.",
            f"Who has how much? `NAME TOTAL` in {out} for all of {scene.parents_path}, summed from {scene.children_path}, biggest first and then by name; whoever has nothing is listed with 0.",
        ),
        thought="Sums by key first, then a line for each name, with zero where there is no sum.",
        slips=(
            (
                "requirement_violation",
                f"awk '{body.replace('{print', '$1 in sum {print')}' {scene.children_file} {scene.parents_file} | sort -k2,2nr -k1,1",
                "Only those with lines have a total.",
            ),
            (
                "analysis_error",
                f"awk '{body.replace('+= $3', '= $3')}' {scene.children_file} {scene.parents_file} | sort -k2,2nr -k1,1",
                "Each key has its amount.",
            ),
        ),
    )


def _changes(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    now = {key for key, _, _ in scene.parents}
    rows = sorted([(key, "-") for key in {*scene.old} - now] + [(key, "+") for key in now - {*scene.old}])
    compared = f"comm -3 <(sort {scene.old_file}) <(cut -d ' ' -f1 {scene.parents_file} | sort)"
    return answers.step(
        out,
        [f"{sign}{key}" for key, sign in rows],
        f"{compared} | sed -e 's/^\\t/+/; t; s/^/-/' | sort -k1.2",
        says=(
            f"Compare the keys in {scene.at}/{scene.old_file} (one per line) with those in {scene.parents_path} and write the differences to {out}: `-KEY` for each that is gone, `+KEY` for each that is new, sorted by key.",
            f"What changed from {scene.at}/{scene.old_file}, a list of keys, to {scene.parents_path}? A line `+KEY` for new and `-KEY` for vanished ones in {out}, by key.",
            f"List in {out} who came (`+KEY`) and who left (`-KEY`) between {scene.at}/{scene.old_file}, which has just keys, and {scene.parents_path}, in order of the keys.",
        ),
        thought="comm -3 leaves what is on one side only; its tab marks the second side.",
        slips=(
            (
                "analysis_error",
                f"{compared} | sed -e 's/^\\t/-/; t; s/^/+/' | sort -k1.2",
                "The tab marks those that are missing.",
            ),
            ("requirement_violation", f"{compared} | sed -e 's/^\\t/+/; t; s/^/-/' | sort", "Sorted, as it should be."),
        ),
    )


_STEPS = (_matched, _idle, _orphans, _totals, _changes)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to the same lists."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    tables = {
        scene.parents_file: [" ".join(row) for row in scene.parents],
        scene.children_file: [f"{number} {key} {amount}" for number, key, amount in scene.children],
        scene.old_file: scene.old,
    }
    return answers.piece(
        family=name,
        title="Join two lists",
        openings=(
            f"Lines in {scene.parents_path} are `KEY NAME CITY`, those in {scene.children_path} `NUMBER KEY AMOUNT`; fields are separated by one blank, sorting is by byte order.",
            f"I have {scene.parents_path} with `KEY NAME CITY` and {scene.children_path} with `NUMBER KEY AMOUNT`, single blanks between, in no order (sort plainly by bytes where it matters).",
            f"Two lists: {scene.parents_path} (`KEY NAME CITY`) and {scene.children_path} (`NUMBER KEY AMOUNT`). One blank between fields, byte order for sorting.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, file, "".join(f"{line}\n" for line in lines)) for file, lines in tables.items()],
    )
