"""A day of readings from one instrument, every ten minutes, with gaps and marked faults: averages, extremes, jumps."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "measurement-series"
category = "measurement series"
tools: tuple[str, ...] = ("awk", "comm", "cut", "sort")
depths = range(1, 6)

FAULT = -999
_QUANTITIES = (
    ("pressure", "hPa"),
    ("flow", "l/h"),
    ("voltage", "mV"),
    ("co2", "ppm"),
    ("dose", "nSv/h"),
    ("depth", "mm"),
)


@dataclass(frozen=True)
class Scene:
    """Readings in time order, faults among them."""

    at: str
    file: str
    readings: list[tuple[str, int]]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    @property
    def good(self) -> list[tuple[str, int]]:
        return [(time, value) for time, value in self.readings if value != FAULT]


def _scene(rng: random.Random, place: Place, quantity: str) -> Scene:
    slots = [f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(0, 60, 10)]
    for slot in rng.sample(slots[1:-1], rng.randint(5, 9)):
        slots.remove(slot)
    faults = set(rng.sample(slots, rng.randint(6, 10)))
    level = rng.randint(400, 900)
    steps = [-40, -40, 40, 40, *rng.choices((-40, *range(-9, 10), 40), k=len(slots) - 4)]
    rng.shuffle(steps)
    readings = []
    for slot, step in zip(slots, steps, strict=True):
        level += step
        readings.append((slot, FAULT if slot in faults else level))
    return Scene(place.directory, f"{quantity}-{rng.choice(words.CITIES)}-{words.day(rng)}.csv", readings)


def _mean(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    values = [value for _, value in scene.good]
    body = '{sum += $2; n++} END {printf "%d %.2f\\n", n, sum / n}'
    return answers.step(
        out,
        [f"{len(values)} {sum(values) / len(values):.2f}"],
        f"awk -F, 'NR > 1 && $2 != {FAULT} {body}' {scene.file}",
        says=(
            f"Write one line to {out}: the number of valid readings in {scene.path} and their mean with exactly two decimals, separated by one blank.",
            f"How many valid readings does {scene.path} have and what is their mean? `COUNT MEAN` in {out}, one blank, the mean rounded to two decimals.",
            f"I need count and average of the valid readings in {scene.path}, as one line with a blank between them in {out}; two decimals for the average.",
        ),
        thought="The header and the faults must stay out of sum and count.",
        slips=(
            ("analysis_error", f"awk -F, 'NR > 1 {body}' {scene.file}", "Each line after the header is a reading."),
            (
                "requirement_violation",
                f"awk -F, 'NR > 1 && $2 != {FAULT} {body.replace('.2f', '.1f')}' {scene.file}",
                "One decimal is as exact as the instrument.",
            ),
        ),
    )


def _extremes(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    low = min(scene.good, key=lambda reading: (reading[1], reading[0]))
    high = min(scene.good, key=lambda reading: (-reading[1], reading[0]))
    ordered = f"tail -n +2 {scene.file} | grep -v ',{FAULT}$' | sort -t,"
    form = "as `TIME VALUE` with one blank, the earlier time where a value occurs more than once"
    return answers.step(
        out,
        [f"{time} {value}" for time, value in (low, high)],
        f"{{ {ordered} -k2,2n -k1,1 | head -n 1; {ordered} -k2,2nr -k1,1 | head -n 1; }} | tr , ' '",
        says=(
            f"Write two lines to {out}: the lowest valid reading of {scene.path}, then the highest, each {form}.",
            f"Find the lowest and then the highest valid reading in {scene.path} and put them on two lines of {out}, {form}.",
            f"When was {scene.path} at its lowest and when at its highest? Two lines in {out}, lowest first, {form}; faults don't count.",
        ),
        thought="Without faults, sorted by value and time upwards, then by value downwards: the first line of each.",
        slips=(
            (
                "analysis_error",
                f"{{ tail -n +2 {scene.file} | sort -t, -k2,2n -k1,1 | head -n 1; {ordered} -k2,2nr -k1,1 | head -n 1; }} | tr , ' '",
                "Sorting by value puts the lowest reading on top.",
            ),
            (
                "requirement_violation",
                f"{{ {ordered} -k2,2nr -k1,1 | head -n 1; {ordered} -k2,2n -k1,1 | head -n 1; }} | tr , ' '",
                "Highest and lowest are two lines, one each.",
            ),
        ),
    )


def _gaps(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    there = {time for time, _ in scene.readings}
    every = [f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(0, 60, 10)]
    plan = "printf '%s\\n' {00..23}:{00..50..10}"
    return answers.step(
        out,
        [time for time in every if time not in there],
        f"comm -13 <(tail -n +2 {scene.file} | cut -d, -f1) <({plan})",
        says=(
            f"Write the times for which {scene.path} has no line at all to {out}: there should be one every ten minutes from 00:00 to 23:50; one time (HH:MM) per line, ascending.",
            f"Some ten-minute slots between 00:00 and 23:50 are missing in {scene.path} altogether. List them as HH:MM, one a line in order of time, in {out}.",
            f"{scene.path} should have a line every ten minutes, 00:00 up to 23:50. Which times have none? HH:MM, earliest first, one a line, in {out}; a line with a fault is not missing.",
        ),
        thought="Brace expansion writes the full day; comm tells which times of it the file lacks.",
        slips=(
            (
                "analysis_error",
                f"comm -13 <(grep -v ',{FAULT}$' {scene.file} | tail -n +2 | cut -d, -f1) <({plan})",
                "A fault is as good as no reading.",
            ),
            (
                "command_error",
                f"comm -12 <(tail -n +2 {scene.file} | cut -d, -f1) <({plan})",
                "comm compares the times with the plan.",
            ),
        ),
    )


def _hourly(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".csv")
    top: dict[str, int] = {}
    for time, value in scene.good:
        top[time[:2]] = max(value, top.get(time[:2], value))
    body = '{h = substr($1, 1, 2); if (!(h in top) || $2 > top[h]) top[h] = $2} END {for (h in top) print h "," top[h]}'
    return answers.step(
        out,
        [f"{hour},{value}" for hour, value in sorted(top.items())],
        f"awk -F, 'NR > 1 && $2 != {FAULT} {body}' {scene.file} | sort",
        says=(
            f"Write the highest valid reading of each hour in {scene.path} to {out} as `HH,VALUE`, without header, hours ascending.",
            f"Reduce {scene.path} to one line per hour, `HH,VALUE` with the highest valid reading of that hour, earliest hour first, no header, in {out}.",
            f"I want hourly maxima from {scene.path} in {out}: lines like `07,512`, no header line, in order of the hours, faults ignored.",
        ),
        thought="The first two characters are the hour; awk keeps the largest value for each.",
        slips=(
            (
                "analysis_error",
                f"awk -F, 'NR > 1 && $2 != {FAULT} {body.replace('$2 > top[h]', '$2 < top[h]')}' {scene.file} | sort",
                "The comparison keeps the extreme value of each hour.",
            ),
            (
                "command_error",
                f"awk -F, 'NR > 1 && $2 != {FAULT} {{top[substr($1, 1, 2)] = $2}} END {{for (h in top) print h \",\" top[h]}}' {scene.file} | sort",
                "An array by hour keeps one value for each.",
            ),
        ),
    )


def _jumps(answers: Answers, scene: Scene) -> Step:
    out, limit = answers.fresh(), answers.rng.randint(15, 30)
    pairs = list(zip(scene.good, scene.good[1:], strict=False))
    found = [f"{after[0]} {after[1] - before[1]:+d}" for before, after in pairs if abs(after[1] - before[1]) > limit]
    body = (
        f'{{d = $2 - last; if (seen && (d > {limit} || d < -{limit})) printf "%s %+d\\n", $1, d; last = $2; seen = 1}}'
    )
    return answers.step(
        out,
        found,
        f"awk -F, 'NR > 1 && $2 != {FAULT} {body}' {scene.file}",
        says=(
            f"Write to {out} each valid reading of {scene.path} that differs from the valid one before it by more than {limit}, as its time, one blank and the signed difference (`08:30 +41`), in order of time.",
            f"List the jumps in {scene.path}: wherever a valid reading is more than {limit} above or below the valid reading before it, a line with time and signed difference like `08:30 +41` in {out}, in file order.",
            f"Where does {scene.path} jump by more than {limit} from one valid reading to the next, up or down? Time of the later one and the change with its sign, like `08:30 +41`, as they come, in {out}.",
        ),
        thought="awk remembers the last valid value; the difference may go either way.",
        slips=(
            (
                "analysis_error",
                f"awk -F, 'NR > 1 && $2 != {FAULT} {body.replace(f' || d < -{limit}', '')}' {scene.file}",
                "A jump is a rise over the limit.",
            ),
            (
                "requirement_violation",
                f"awk -F, 'NR > 1 && $2 != {FAULT} {body.replace('%+d', '%d')}' {scene.file}",
                "The difference is the number itself.",
            ),
            ("verification_failure", f"awk -F, 'NR > 1 {body}' {scene.file}", "It prints jumps, so it works."),
        ),
    )


_STEPS = (_mean, _extremes, _gaps, _hourly, _jumps)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent evaluations of one series."""
    quantity, unit = rng.choice(_QUANTITIES)
    scene, answers = _scene(rng, place, quantity), Answers(rng=rng, place=place)
    text = f"time,{quantity}\n" + "".join(f"{time},{value}\n" for time, value in scene.readings)
    return answers.piece(
        family=name,
        title=f"Evaluate a {quantity} series",
        openings=(
            f"The file {scene.path} has one header line and then `HH:MM,VALUE` in {unit}; the value {FAULT} marks a fault, all others are valid.",
            f"In {scene.path} there is a day of {quantity} readings ({unit}) as `HH:MM,VALUE` under a header. {FAULT} means that the instrument had a fault; everything else is valid.",
            f"Please look at the {quantity} readings in {scene.path}: header, then `HH:MM,VALUE`. A value of {FAULT} is a fault and not valid.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, text)],
    )
