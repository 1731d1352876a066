"""Lists of quantities in mixed units, brought to one unit each: lengths, masses, temperatures, durations, sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file
from sandbox.spec import File

name = "unit-conversion"
category = "units and conversions"
tools: tuple[str, ...] = ("awk", "sort")
depths = range(1, 6)

Row = tuple[str, int, str]


@dataclass(frozen=True)
class Scene:
    """The inputs, one list for each step."""

    at: str
    files: list[File] = field(default_factory=list)

    def add(self, place: Place, file: str, lines: list[str]) -> str:
        """A new input; gives its path."""
        self.files.append(text_file(place, file, "".join(f"{line}\n" for line in lines)))
        return f"{self.at}/{file}"


def _rows(rng: random.Random, units: tuple[str, ...], low: int, high: int) -> list[Row]:
    """Each unit at least twice, `low` to `high` of it, for different things."""
    chosen = [*units, *units, *rng.choices(units, k=rng.randint(3, 7))]
    rng.shuffle(chosen)
    things = words.distinct(rng, words.PRODUCTS, len(chosen))
    return [(thing, rng.randint(low, high), unit) for thing, unit in zip(things, chosen, strict=True)]


def _lengths(answers: Answers, scene: Scene) -> Step:
    metres = {"m": 1.0, "km": 1000.0, "ft": 0.3048, "mi": 1609.344}
    rows, out = _rows(answers.rng, tuple(metres), 3, 900), answers.fresh()
    file = f"lengths-{answers.rng.choice(words.CITIES)}.txt"
    path = scene.add(answers.place, file, [f"{thing} {value} {unit}" for thing, value, unit in rows])
    program = (
        'BEGIN {f["m"] = 1; f["km"] = 1000; f["ft"] = 0.3048; f["mi"] = 1609.344} {printf "%s %.3f\\n", $1, $2 * f[$3]}'
    )
    return answers.step(
        out,
        [f"{thing} {value * metres[unit]:.3f}" for thing, value, unit in rows],
        f"awk '{program}' {file}",
        says=(
            f"Convert the lengths in {path} to metres and write `NAME METRES` lines with exactly three decimals to {out}, in the order of the file (1 ft = 0.3048 m, 1 mi = 1609.344 m).",
            f"Bring everything in {path} to metres: {out} gets a line `NAME METRES` for each, same order, three decimals; a foot is 0.3048 m and a mile 1609.344 m.",
            f"{path} mixes m, km, ft and mi. I want metres, three decimals, `NAME METRES` line by line in the same order in {out}. Foot: 0.3048 m, mile: 1609.344 m.",
        ),
        thought="A table of factors in awk, then one multiplication for each line.",
        slips=(
            (
                "command_error",
                f"awk '{program.replace('0.3048', '3.048')}' {file}",
                "A foot is 0.3048 metres, I move the point.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('%.3f', '%g')}' {file}",
                "awk prints as many decimals as there are.",
            ),
            (
                "analysis_error",
                f"awk '{program.replace('1609.344', '1852')}' {file}",
                "A mile is 1852 metres on every chart.",
            ),
        ),
    )


def _masses(answers: Answers, scene: Scene) -> Step:
    grams = {"g": 1.0, "kg": 1000.0, "lb": 453.59237}
    rows, out = _rows(answers.rng, tuple(grams), 2, 800), answers.fresh()
    file = f"weights-{answers.rng.choice(words.CITIES)}.txt"
    path = scene.add(answers.place, file, [f"{thing} {value}{unit}" for thing, value, unit in rows])
    program = '/[0-9]lb$/ {v *= 453.59237} /kg$/ {v *= 1000} {printf "%.1f %s\\n", v, $1}'
    heaviest = sorted(rows, key=lambda row: (-row[1] * grams[row[2]], row[0]))
    return answers.step(
        out,
        [f"{value * grams[unit]:.1f} {thing}" for thing, value, unit in heaviest],
        f"awk '{{v = $2 + 0}} {program}' {file} | sort -k1,1nr -k2,2",
        says=(
            f"Write {out} with the masses of {path} in grams, as `GRAMS NAME` with exactly one decimal, heaviest first, ties by name (1 lb = 453.59237 g).",
            f"The masses in {path} are in g, kg and lb. Make it `GRAMS NAME`, one decimal, the heaviest on top and equal ones by name, in {out}; a pound has 453.59237 g.",
            f"Sort the things in {path} by mass, heaviest first (same mass: by name), and put `GRAMS NAME` into {out}: grams with one decimal, 453.59237 g to the pound.",
        ),
        thought="Adding zero strips the unit; the unit decides the factor; then a numeric sort downwards.",
        slips=(
            (
                "requirement_violation",
                f"awk '{{v = $2 + 0}} {program}' {file} | sort -k1,1n",
                "Sorted by number, one after the other.",
            ),
            (
                "command_error",
                f"awk '{{v = $2 + 0}} {program}' {file} | sort -r",
                "Reverse order puts the heaviest first.",
            ),
        ),
    )


def _temperatures(answers: Answers, scene: Scene) -> Step:
    cities = words.distinct(answers.rng, words.CITIES, answers.rng.randint(9, 14))
    units = ["F", "K", "C", "F", "K", "C", *answers.rng.choices("FKC", k=20)]
    limits = {"F": (5, 104), "K": (-20, 41), "C": (-20, 41)}
    rows = [(city, answers.rng.randint(*limits[unit]), unit) for city, unit in zip(cities, units, strict=False)]
    lines = [f"{city},{f'{273 + value}.15' if unit == 'K' else value},{unit}" for city, value, unit in rows]
    out, file = answers.fresh(".csv"), f"temperatures-{answers.rng.randint(2016, 2024)}.csv"
    path = scene.add(answers.place, file, lines)
    program = '$3 == "F" {$2 = ($2 - 32) * 5 / 9} $3 == "K" {$2 -= 273.15} {printf "%s,%.1f\\n", $1, $2}'
    return answers.step(
        out,
        [f"{city},{(value - 32) * 5 / 9 if unit == 'F' else value:.1f}" for city, value, unit in sorted(rows)],
        f"awk -F, '{program}' {file} | sort",
        says=(
            f"Convert {path} (CITY,VALUE,UNIT with F, K or C) to degrees Celsius: lines `CITY,CELSIUS` with exactly one decimal, sorted by city, in {out}. 0 °C is 273.15 K.",
            f"The temperatures in {path} come as CITY,VALUE,UNIT in F, K and C. Write all as Celsius to {out}, `CITY,CELSIUS`, rounded to one decimal, by city; 273.15 K is 0 °C.",
            f"Everything in {path} (CITY,VALUE,UNIT; the unit is F, K or C) should be Celsius. `CITY,CELSIUS`, cities in alphabetical order, one decimal, in {out}. Zero Celsius is 273.15 K.",
        ),
        thought="One formula for Fahrenheit, an offset for Kelvin, nothing for Celsius.",
        slips=(
            (
                "command_error",
                f"awk -F, '{program.replace('* 5 / 9', '* 9 / 5')}' {file} | sort",
                "Fahrenheit degrees differ by the factor nine fifths.",
            ),
            (
                "analysis_error",
                f"awk -F, '{program.replace('($2 - 32) * 5 / 9', '$2 * 5 / 9 - 32')}' {file} | sort",
                "Scale first, then take off the 32.",
            ),
        ),
    )


def _durations(answers: Answers, scene: Scene) -> Step:
    spans = [(answers.rng.randint(1, 9), answers.rng.randint(1, 59)) for _ in range(answers.rng.randint(9, 14))]
    things = words.distinct(answers.rng, words.PROJECTS, len(spans))
    out, file = answers.fresh(), f"hours-{answers.rng.choice(words.PEOPLE)}.txt"
    path = scene.add(answers.place, file, [f"{what} {h}h{m:02d}m" for what, (h, m) in zip(things, spans, strict=True)])
    minutes = [60 * h + m for h, m in spans]
    program = '{split($2, t, /[hm]/); n = t[1] * 60 + t[2]; sum += n; print $1, n} END {print "total", sum}'
    return answers.step(
        out,
        [*(f"{what} {n}" for what, n in zip(things, minutes, strict=True)), f"total {sum(minutes)}"],
        f"awk '{program}' {file}",
        says=(
            f"Convert the durations in {path} (like 2h05m) to minutes: lines `NAME MINUTES` in the order of the file and `total SUM` as the last line, in {out}.",
            f"Write {out} with the times of {path} in whole minutes, `NAME MINUTES` in the same order, and one more line `total SUM` at the end.",
            f"{path} has times like 2h05m. I want minutes, `NAME MINUTES` line by line as they come, and below them `total` with the sum, in {out}.",
        ),
        thought="Splitting at h and m gives hours and minutes; a sum runs along.",
        slips=(
            (
                "analysis_error",
                f"awk '{program.replace('* 60', '* 100')}' {file}",
                "Hours stand two places left of the minutes.",
            ),
            (
                "requirement_violation",
                f"awk '{program.partition(' END')[0]}' {file}",
                "Each line is converted, which is the point.",
            ),
        ),
    )


def _sizes(answers: Answers, scene: Scene) -> Step:
    factor = {"kB": 1000, "KiB": 1024, "MB": 1000**2, "MiB": 1024**2}
    rows, out = _rows(answers.rng, tuple(factor), 2, 900), answers.fresh()
    file = f"sizes-{answers.rng.choice(words.HOSTS)}.txt"
    path = scene.add(answers.place, file, [f"{value} {unit} {thing}.img" for thing, value, unit in rows])
    program = '{n = toupper(substr($2, 1, 1)) == "M" ? 2 : 1; base = $2 ~ /i/ ? 1024 : 1000; print $1 * base ^ n, $3}'
    return answers.step(
        out,
        [f"{value * factor[unit]} {thing}.img" for thing, value, unit in rows],
        f"awk '{program}' {file}",
        says=(
            f"Convert the sizes in {path} to bytes: lines `BYTES NAME` in the order of the file in {out}; kB and MB count in thousands, KiB and MiB in 1024s.",
            f"{out} should list what is in {path} as `BYTES NAME`, same order. Mind the units: 1 kB is 1000 bytes, 1 KiB is 1024, MB and MiB accordingly.",
            f"Give me {path} in plain bytes, `BYTES NAME` in the same order, in {out}. kB and MB are decimal, KiB and MiB are binary.",
        ),
        thought="An i in the unit means 1024, and M means the square.",
        slips=(
            ("analysis_error", f"awk '{program.replace(': 1000', ': 1024')}' {file}", "Computers count in 1024s."),
            (
                "command_error",
                f"awk '{program.replace('base ^ n', 'base * n')}' {file}",
                "Mega is one step more than kilo.",
            ),
        ),
    )


_STEPS = (_lengths, _masses, _temperatures, _durations, _sizes)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """One list for each conversion."""
    scene, answers = Scene(place.directory), Answers(rng=rng, place=place)
    steps = [make(answers, scene) for make in rng.sample(_STEPS, depth)]
    return answers.piece(
        family=name,
        title="Convert units",
        openings=(
            f"Lists in {scene.at} use mixed units. Blanks between fields are single ones.",
            f"I got some lists from different people in {scene.at}, each with its own units; fields in the results are separated by one blank unless I say otherwise.",
            f"The units in {scene.at} are a mess. Use one blank between fields unless a comma is shown.",
        ),
        steps=steps,
        files=scene.files,
    )
