"""Small optimisation puzzles with one best answer by construction: baskets, assignments, schedules, exact sums, covers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, pairwise, permutations

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file
from sandbox.spec import File

name = "budget-puzzles"
category = "constraint puzzles"
tools: tuple[str, ...] = ("awk", "python3", "sort")
depths = range(1, 6)

_READ = "import sys, itertools\nrows = [line.split() for line in open(sys.argv[1])]\n"
_SUBSETS = "subsets = [s for n in range(len(rows) + 1) for s in itertools.combinations(rows, n)]\n"
_SHOW = 'print(*sorted(r[0] for r in best), sep="\\n")'

Puzzle = Callable[[Answers], tuple[Step, File]]


def _python(program: str, *arguments: object) -> str:
    return f"python3 -c '{_READ}{program}' {' '.join(map(str, arguments))}"


def _input(answers: Answers, stem: str, rows: list[tuple[object, ...]]) -> File:
    text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
    return text_file(answers.place, f"{stem}-{answers.rng.choice(words.PROJECTS)}.txt", text)


def _file(file: File) -> str:
    return file.path.rsplit("/", 1)[1]


def _basket(answers: Answers) -> tuple[Step, File]:
    rng = answers.rng
    while True:
        things = words.distinct(rng, words.PRODUCTS, 10)
        items = [(thing, rng.randint(12, 60), rng.randint(15, 99)) for thing in things]
        budget = sum(price for _, price, _ in items) // 2
        fitting = [s for n in range(11) for s in combinations(items, n) if sum(i[1] for i in s) <= budget]
        best, second = sorted(fitting, key=lambda s: -sum(i[2] for i in s))[:2]
        greedy: list[tuple[str, int, int]] = []
        for item in sorted(items, key=lambda i: -i[2]):
            greedy += [item] if sum(i[1] for i in greedy) + item[1] <= budget else []
        if sum(i[2] for i in best) > sum(i[2] for i in second) and {*greedy} != {*best}:
            break
    out, file = answers.fresh(), _input(answers, "basket", list(items))
    pick = "best = max((s for s in subsets if sum(int(r[1]) for r in s) <= int(sys.argv[2])), key=lambda s: sum(int(r[2]) for r in s))\n"
    program = f"sort -k3,3nr {_file(file)} | awk -v b={budget} '$2 <= b {{b -= $2; print $1}}' | sort"
    step = answers.step(
        out,
        sorted(item[0] for item in best),
        _python(_SUBSETS + pick + _SHOW, _file(file), budget),
        says=(
            f"{file.path} has lines `NAME PRICE VALUE`. Choose items, each at most once, whose prices add up to at most {budget} and whose values add up to as much as possible (one choice is best). Write their names to {out}, one per line, sorted.",
            f"We have {budget} to spend on what {file.path} offers (`NAME PRICE VALUE`, each item once). Find the choice with the greatest total value, it is unique, and put the names sorted into {out}, one a line.",
            f"What should we take from {file.path} (`NAME PRICE VALUE`) if we can't pay more than {budget} and want the most value? Nothing twice; there is one best answer. Names in alphabetical order, one a line, in {out}.",
        ),
        thought="Ten items are a thousand subsets: try them all.",
        slips=(
            ("analysis_error", program, "Taking the most valuable first until the money is gone."),
            (
                "requirement_violation",
                _python(
                    _SUBSETS + pick.replace("<= int", "<= 9 + sum(int(r[1]) for r in rows) + 0 * int") + _SHOW,
                    _file(file),
                    budget,
                ),
                "The most value comes with the most items.",
            ),
        ),
    )
    return step, file


def _assignment(answers: Answers) -> tuple[Step, File]:
    rng = answers.rng
    people, jobs = sorted(words.distinct(rng, words.PEOPLE, 5)), sorted(words.distinct(rng, words.STEMS, 5))
    while True:
        cost = {(who, job): rng.randint(3, 40) for who in people for job in jobs}
        ways = sorted(permutations(jobs), key=lambda way: sum(cost[pair] for pair in zip(people, way, strict=True)))
        totals = [sum(cost[pair] for pair in zip(people, way, strict=True)) for way in ways[:2]]
        cheapest = [min(jobs, key=lambda job: cost[who, job]) for who in people]
        if totals[0] < totals[1] and len(set(cheapest)) < 5:
            break
    rows = [(who, job, hours) for (who, job), hours in cost.items()]
    rng.shuffle(rows)
    out, file = answers.fresh(), _input(answers, "hours", list(rows))
    setting = "h = {(a, b): int(n) for a, b, n in rows}\npeople, jobs = sorted({r[0] for r in rows}), sorted({r[1] for r in rows})\n"
    search = "best = min(itertools.permutations(jobs), key=lambda way: sum(h[p] for p in zip(people, way)))\n"
    show = 'print(*(f"{a} {b}" for a, b in zip(people, best)), sep="\\n")'
    step = answers.step(
        out,
        [f"{who} {job}" for who, job in zip(people, ways[0], strict=True)],
        _python(setting + search + show, _file(file)),
        says=(
            f"{file.path} tells in lines `PERSON JOB HOURS` how long each person needs for each job. Give every person exactly one job and every job exactly one person so that the hours add up to the least (one way is best), and write `PERSON JOB` lines to {out}, sorted by person.",
            f"Assign the jobs in {file.path} (`PERSON JOB HOURS`): one job each, no job left over, smallest sum of hours; there is only one such plan. `PERSON JOB` by person in {out}.",
            f"Who should do what? {file.path} has `PERSON JOB HOURS` for all combinations; everybody gets one job, all jobs get done, total hours as low as possible. Exactly one answer; lines `PERSON JOB`, alphabetical by person, in {out}.",
        ),
        thought="Five people mean 120 plans, so I compare them all.",
        slips=(
            (
                "analysis_error",
                f"sort -k1,1 -k3,3n {_file(file)} | awk '!seen[$1]++ {{print $1, $2}}'",
                "Everybody gets what they are fastest at.",
            ),
            (
                "command_error",
                _python(setting + search.replace("min(", "max(", 1) + show, _file(file)),
                "The best plan is the extreme one.",
            ),
        ),
    )
    return step, file


def _schedule(answers: Answers) -> tuple[Step, File]:
    rng = answers.rng
    while True:
        names = words.distinct(rng, words.STEMS, 9)
        starts = [rng.randint(8 * 60, 16 * 60) for _ in names]
        talks = [(who, start, start + rng.randint(20, 150)) for who, start in zip(names, starts, strict=True)]
        fitting = [
            s
            for n in range(10)
            for s in combinations(sorted(talks, key=lambda t: t[1]), n)
            if all(a[2] <= b[1] for a, b in pairwise(s))
        ]
        most = max(map(len, fitting))
        early: list[tuple[str, int, int]] = []
        for talk in sorted(talks, key=lambda t: t[1]):
            early += [talk] if not early or early[-1][2] <= talk[1] else []
        best = next(s for s in fitting if len(s) == most)
        unique = sum(len(s) == most for s in fitting) == 1
        if unique and len(early) < most and list(best) != sorted(best):
            break
    out, file = answers.fresh(), _input(answers, "talks", list(talks))
    greedy = "awk '$2 >= free {free = $3; print $1}'"
    step = answers.step(
        out,
        [talk[0] for talk in best],
        f"sort -k3,3n {_file(file)} | {greedy}",
        says=(
            f"{file.path} lists talks as `NAME START END` in minutes after midnight. Choose as many as possible of which no two overlap (one may start when another ends); the choice is unique. Write the names in order of time to {out}, one per line.",
            f"I want to hear as many of the talks in {file.path} (`NAME START END`, minutes) as I can, all in full; a talk may begin the minute another ends. There is one best choice: names in order of time, one a line, in {out}.",
            f"Which talks in {file.path} can I attend, at most? Lines are `NAME START END` in minutes, no two of mine may overlap, end equal to start is fine. One answer only; names by time, one a line, in {out}.",
        ),
        thought="Always taking the talk that ends first gives the most talks.",
        slips=(
            ("analysis_error", f"sort -k2,2n {_file(file)} | {greedy}", "I go to the next talk that starts."),
            ("requirement_violation", f"sort -k3,3n {_file(file)} | {greedy} | sort", "In order means sorted by name."),
        ),
    )
    return step, file


def _greedy(amounts: list[int], chosen: list[int], direction: int) -> list[int]:
    """What taking amounts in order of size, as long as they fit, finds for the sum of the chosen ones."""
    rest, taken = sum(chosen), []
    for amount in sorted(amounts, key=lambda amount: direction * amount):
        if amount <= rest:
            rest -= amount
            taken.append(amount)
    return sorted(taken)


def _exact_sum(answers: Answers) -> tuple[Step, File]:
    rng = answers.rng
    while True:
        amounts = rng.sample(range(1100, 9900), 11)
        chosen = sorted(rng.sample(amounts, 4))
        sums = [sum(s) for n in range(12) for s in combinations(amounts, n)]
        if sums.count(sum(chosen)) == 1 and chosen not in (_greedy(amounts, chosen, -1), _greedy(amounts, chosen, 1)):
            break
    invoices = [
        (f"inv-{rng.randint(100, 999)}{n:02d}", f"{cents // 100}.{cents % 100:02d}") for n, cents in enumerate(amounts)
    ]
    picked = sorted(invoice[0] for invoice, cents in zip(invoices, amounts, strict=True) if cents in chosen)
    paid = f"{sum(chosen) // 100}.{sum(chosen) % 100:02d}"
    out, file = answers.fresh(), _input(answers, "invoices", list(invoices))
    pick = 'best = next(s for s in subsets if sum(int(r[1].replace(".", "")) for r in s) == int(sys.argv[2].replace(".", "")))\n'
    step = answers.step(
        out,
        picked,
        _python(_SUBSETS + pick + _SHOW, _file(file), paid),
        says=(
            f"A payment of {paid} settled some of the invoices in {file.path} (`NUMBER AMOUNT`) in full. Write the numbers of those whose amounts add up to exactly that to {out}, sorted, one per line; there is one combination.",
            f"Somebody paid {paid} for several invoices of {file.path} (`NUMBER AMOUNT`) at once. Which ones? Only one combination gives that sum; its numbers, sorted, one a line, go to {out}.",
            f"We received {paid} without a reference. Find out which invoices in {file.path} (`NUMBER AMOUNT`) together make exactly this, there's just one possibility, and put their numbers in order, one a line, into {out}.",
        ),
        thought="Compare in cents and try all subsets of eleven invoices.",
        slips=(
            (
                "command_error",
                f"sort -k2,2nr {_file(file)} | awk -v b={paid} '$2 <= b {{b -= $2; print $1}}' | sort",
                "The largest ones that still fit make up the sum.",
            ),
            (
                "analysis_error",
                f"sort -k2,2n {_file(file)} | awk -v b={paid} '$2 <= b {{b -= $2; print $1}}' | sort",
                "Small invoices are settled together.",
            ),
        ),
    )
    return step, file


def _cover(answers: Answers) -> tuple[Step, File]:
    rng = answers.rng
    while True:
        people = words.distinct(rng, words.PEOPLE, 9)
        skills = sorted(words.distinct(rng, words.TERMS, 8))
        rows = [(who, *rng.sample(skills, rng.choice((2, 3, 4)))) for who in people]
        fitting = [s for n in range(1, 5) for s in combinations(rows, n) if {x for r in s for x in r[1:]} == {*skills}]
        least = min(map(len, fitting), default=0)
        first: list[tuple[str, ...]] = []
        for row in rows:
            first += [row] if {*row[1:]} - {x for r in first for x in r[1:]} else []
        if least >= 3 and sum(len(s) == least for s in fitting) == 1 and len(first) > least:
            break
    best = next(s for s in fitting if len(s) == least)
    out, file = answers.fresh(), _input(answers, "skills", list(rows))
    want = "want = {x for r in rows for x in r[1:]}\n"
    pick = "best = next(s for s in subsets if {x for r in s for x in r[1:]} == want)\n"
    step = answers.step(
        out,
        sorted(row[0] for row in best),
        _python(_SUBSETS + want + pick + _SHOW, _file(file)),
        says=(
            f"Each line of {file.path} is a person followed by that person's skills. Find the smallest group that has every skill in the file between them (it is unique) and write the names to {out}, sorted, one per line.",
            f"Put together the smallest team from {file.path} (a name, then skills, on each line) in which each skill that occurs is present. Only one team is that small: names sorted, one a line, in {out}.",
            f"How few people from {file.path} do I need so that all skills mentioned there are covered? A line is a name and then what they can do. There's exactly one smallest group; sorted names, one a line, in {out}.",
        ),
        thought="Subsets by size, the first that covers everything is the smallest.",
        slips=(
            (
                "analysis_error",
                f"awk '{{new = 0; for (i = 2; i <= NF; i++) if (!seen[$i]++) new = 1; if (new) print $1}}' {_file(file)} | sort",
                "I take everybody who adds something new.",
            ),
            (
                "command_error",
                f"awk '{{print NF, $1}}' {_file(file)} | sort -k1,1nr -k2,2 | head -n 2 | cut -d ' ' -f2 | sort",
                "The people with the most skills cover the most.",
            ),
        ),
    )
    return step, file


_PUZZLES: tuple[Puzzle, ...] = (_basket, _assignment, _schedule, _exact_sum, _cover)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent puzzles."""
    answers = Answers(rng=rng, place=place)
    drawn = [puzzle(answers) for puzzle in rng.sample(_PUZZLES, depth)]
    at = place.directory
    return answers.piece(
        family=name,
        title="Choose the best",
        openings=(
            f"The files in {at} describe choices; names are sorted by byte order.",
            f"I have some decisions to make, the numbers are in {at}. Please find the best answers.",
            f"The data for a bit of puzzling is in {at}.",
        ),
        steps=[step for step, _ in drawn],
        files=[file for _, file in drawn],
    )
