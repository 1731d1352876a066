"""Reports from a plain time sheet: totals, averages, a cross table, records above average, shares."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "awk-report"
category = "data processing"
tools: tuple[str, ...] = ("awk", "sort")
depths = range(1, 6)


@dataclass(frozen=True)
class Entry:
    """One line: `day person job minutes`."""

    day: str
    person: str
    job: str
    minutes: int

    def __str__(self) -> str:
        return f"{self.day} {self.person} {self.job} {self.minutes}"


@dataclass
class Scene:
    """The entries and the answer files written so far."""

    rng: random.Random
    at: str
    file: str
    entries: list[Entry]
    names: list[str]
    outputs: list[str] = field(default_factory=list)

    def answer(self) -> str:
        self.outputs.append(self.names.pop())
        return self.outputs[-1]

    def minutes_by(self, key: str) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = defaultdict(list)
        for entry in self.entries:
            groups[getattr(entry, key)].append(entry.minutes)
        return dict(sorted(groups.items()))


def _totals(scene: Scene) -> Step:
    out = scene.answer()
    lines = [f"{person:<12}{sum(minutes):>8}" for person, minutes in scene.minutes_by("person").items()]
    program = '{t[$2] += $4} END {for (p in t) printf "%-12s%8d\\n", p, t[p]}'
    return Step(
        says=(
            f"Sum the minutes of each person in {scene.at}/{scene.file} into {scene.at}/{out}: the name left-aligned in 12 columns, then the sum "
            "right-aligned in 8 columns, sorted by name.",
            f"Total up the minutes per person from {scene.file}. The lines in {scene.at}/{out} have the name padded with blanks to 12 characters and "
            "the sum right-aligned in 8 more; in order of the names.",
            f"A little table in {scene.at}/{out}, please: everybody in {scene.file} with their total minutes, name first (12 wide, flush left), then the "
            "number (8 wide, flush right), alphabetical.",
        ),
        thought="Sum in an array and let printf take care of the widths.",
        command=f"awk '{program}' {scene.file} | sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "requirement_violation",
                f"awk '{{t[$2] += $4}} END {{for (p in t) print p, t[p]}}' {scene.file} | sort > {out}",
                "Name and sum are there.",
            ),
            slip(
                "command_error",
                f"awk '{program.replace('+= $4', '= $4')}' {scene.file} | sort > {out}",
                "Each line sets the person's minutes.",
            ),
            slip(
                "analysis_error",
                f"awk '{program.replace('t[$2]', 't[$3]')}' {scene.file} | sort > {out}",
                "The name is the third field.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _averages(scene: Scene) -> Step:
    out = scene.answer()
    lines = [
        f"{job} {len(minutes)} {sum(minutes) / len(minutes):.2f}" for job, minutes in scene.minutes_by("job").items()
    ]
    program = '{s[$3] += $4; n[$3]++} END {for (j in s) printf "%s %d %.2f\\n", j, n[j], s[j] / n[j]}'
    return Step(
        says=(
            f"Write a line `JOB ENTRIES AVERAGE` for each job of {scene.at}/{scene.file} to {scene.at}/{out}: number of entries and average minutes with "
            "two decimals, sorted by job.",
            f"For every job in {scene.file} I need the number of entries and the mean of the minutes (two decimals), as `JOB ENTRIES AVERAGE` lines sorted "
            f"by job in {scene.at}/{out}.",
            f"How long does each job take on average? {scene.at}/{out} should list `JOB ENTRIES AVERAGE` from {scene.file}, jobs from a to z, the average "
            "with exactly two decimals.",
        ),
        thought="Keep sum and count for each job and divide at the end.",
        command=f"awk '{program}' {scene.file} | sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "requirement_violation",
                f"awk '{program.replace('%.2f', '%d')}' {scene.file} | sort > {out}",
                "Whole minutes are precise enough.",
            ),
            slip(
                "command_error",
                f"awk '{program.replace('s[j] / n[j]', 's[j] / NR')}' {scene.file} | sort > {out}",
                "NR is the number of entries.",
            ),
            slip(
                "analysis_error",
                f"awk '{program.replace('$3', '$2')}' {scene.file} | sort > {out}",
                "The second field names the job.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _above(scene: Scene) -> Step:
    out = scene.answer()
    mean = sum(entry.minutes for entry in scene.entries) / len(scene.entries)
    lines = [str(entry) for entry in scene.entries if entry.minutes > mean]
    program = "NR == FNR {s += $4; n++; next} $4 > s / n"
    return Step(
        says=(
            f"Copy the lines of {scene.at}/{scene.file} whose minutes exceed the average of all lines to {scene.at}/{out}, in their order.",
            f"Pick the entries of {scene.file} that took longer than the overall average and keep them, unchanged and in order, in {scene.at}/{out}.",
            f"Which entries in {scene.file} are above the mean of all minutes? Those lines as they are, same order, in {scene.at}/{out}.",
        ),
        thought="Two passes: the first makes the mean, the second compares.",
        command=f"awk '{program}' {scene.file} {scene.file} > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "command_error",
                f"awk '{{s += $4; n++}} $4 > s / n' {scene.file} > {out}",
                "The mean is known while reading.",
            ),
            slip(
                "requirement_violation",
                f"awk '{program}' {scene.file} {scene.file} | sort -k4,4nr > {out}",
                "Longest first reads better.",
            ),
            slip("verification_failure", f"awk '{program}' {scene.file} > {out}", "The program has both passes in it."),
        ),
    )


def _cross(scene: Scene) -> Step:
    out = scene.answer()
    jobs = sorted({entry.job for entry in scene.entries})
    people = sorted({entry.person for entry in scene.entries})
    cell: dict[tuple[str, str], int] = defaultdict(int)
    for entry in scene.entries:
        cell[entry.person, entry.job] += entry.minutes
    lines = [",".join(["person", *jobs]), *(",".join([p, *(str(cell[p, j]) for j in jobs)]) for p in people)]
    columns = " ".join(jobs)
    head = f'split("{columns}", J, " ")'
    row = 'printf "%s", p; for (i = 1; i in J; i++) printf ",%d", t[p, J[i]]; print ""'
    body = f"BEGIN {{{head}}} {{t[$2, $3] += $4; seen[$2]}} END {{for (p in seen) {{{row}}}}}"
    heading = ",".join(["person", *jobs])
    return Step(
        says=(
            f"Make a CSV table of the minutes in {scene.at}/{scene.file} by person and job in {scene.at}/{out}: header `person` and the jobs in byte order, "
            "one row for each person in byte order, sums in the cells, 0 where there is nothing.",
            f"Cross people with jobs: {scene.at}/{out} is a CSV whose header is `person` followed by all jobs of {scene.file} in alphabetical order, then a row "
            "per person (alphabetical) with the summed minutes, and 0 for no entry.",
            f"I'd like a matrix from {scene.file} as CSV in {scene.at}/{out}. First line `person` and then the jobs from a to z; below, everybody from a to z "
            "with the sum of minutes for each job, 0 if none.",
        ),
        thought="Collect sums by person and job, print a cell for each known job, and sort below a fixed header.",
        command=f"{{ echo {heading}; awk '{body}' {scene.file} | sort; }} > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip("requirement_violation", f"awk '{body}' {scene.file} | sort > {out}", "The numbers are all there."),
            slip(
                "command_error",
                f"{{ echo {heading}; awk '{body.replace('+= $4', '= $4')}' {scene.file} | sort; }} > {out}",
                "The cell takes the minutes.",
            ),
            slip(
                "analysis_error",
                f"{{ echo {heading}; awk '{body.replace('+= $4', '+= 1')}' {scene.file} | sort; }} > {out}",
                "A table counts entries.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _busiest(scene: Scene) -> Step:
    out = scene.answer()
    best: dict[str, tuple[int, str]] = {}
    for job in sorted({entry.job for entry in scene.entries}):
        sums: dict[str, int] = defaultdict(int)
        for entry in scene.entries:
            if entry.job == job:
                sums[entry.person] += entry.minutes
        minutes, person = min((-total, person) for person, total in sums.items())
        best[job] = (-minutes, person)
    lines = [f"{job}: {person} ({minutes})" for job, (minutes, person) in best.items()]
    sums_program = '{t[$3 " " $2] += $4} END {for (k in t) print k, t[k]}'
    pick = '!seen[$1]++ {print $1 ": " $2 " (" $3 ")"}'
    order = "LC_ALL=C sort -k1,1 -k3,3nr -k2,2"
    return Step(
        says=(
            f"Find for each job in {scene.at}/{scene.file} the person with the most minutes in sum; write `JOB: PERSON (MINUTES)` lines sorted by job to "
            f"{scene.at}/{out}, equal sums going to the name that sorts first.",
            f"Who spent most time on each job according to {scene.file}? Add up per person; {scene.at}/{out} gets a line `JOB: PERSON (MINUTES)` per job, jobs "
            "in alphabetical order, the alphabetically first name on a tie.",
            f"Each job in {scene.file} has someone with the largest total of minutes. List them in {scene.at}/{out} like `JOB: PERSON (MINUTES)`, by job from a to "
            "z; on a tie take the first name in the alphabet.",
        ),
        thought="Sums per job and person, ordered so that the best comes first within its job; then the first of each job.",
        command=f"awk '{sums_program}' {scene.file} | {order} | awk '{pick}' > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "analysis_error",
                f'LC_ALL=C sort -k3,3 -k4,4nr {scene.file} | awk \'!seen[$3]++ {{print $3 ": " $2 " (" $4 ")"}}\' > {out}',
                "Longest entry wins.",
            ),
            slip(
                "command_error",
                f"awk '{sums_program}' {scene.file} | LC_ALL=C sort -k1,1 -k3,3n | awk '{pick}' > {out}",
                "Sort by minutes within a job.",
            ),
            slip(
                "requirement_violation",
                f"awk '{sums_program}' {scene.file} | {order} | awk '!seen[$1]++' > {out}",
                "Job, person and sum are listed.",
            ),
        ),
        truth=("\n".join(lines),),
    )


_REPORTS: tuple[Callable[[Scene], Step], ...] = (_totals, _averages, _above, _cross, _busiest)


def _entries(rng: random.Random) -> list[Entry]:
    people = words.distinct(rng, words.PEOPLE, rng.randint(5, 7))
    jobs = words.distinct(rng, words.STEMS, rng.randint(4, 5))
    every = [(person, job) for person in people for job in jobs]
    pairs = [*rng.sample(every, len(every) - 2) * 2, *rng.choices(every, k=rng.randint(6, 16))]
    rng.shuffle(pairs)
    days = sorted(words.day(rng) for _ in pairs)
    return [Entry(day, person, job, rng.randint(5, 480)) for day, (person, job) in zip(days, pairs, strict=True)]


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Different reports from one sheet."""
    entries = _entries(rng)
    file, *names = [f"{stem}.{rng.choice(('txt', 'log', 'dat'))}" for stem in words.distinct(rng, words.STEMS, 6)]
    scene = Scene(rng, place.directory, file, entries, names)
    steps = [report(scene) for report in rng.sample(_REPORTS, depth)]
    sheet = text_file(place, file, "".join(f"{entry}\n" for entry in entries))
    columns = "day, person, job and minutes, separated by blanks"
    return assemble(
        family=name,
        title="Report on a time sheet",
        place=place,
        openings=(
            f"The time sheet {sheet.path} has the columns {columns}, without a header.",
            f"Our time sheet is {sheet.path}: {columns}, no header line.",
            f"I need numbers from the time sheet {sheet.path}. Each line has {columns}; there is no header.",
        ),
        steps=steps,
        files=[sheet],
        initial_checks=(
            present(place.directory, [file]),
            *(absent(f"{place.directory}/{out}") for out in scene.outputs),
        ),
        guards=(unchanged(sheet.path, sheet.data),),
    )
