"""Short Python programs with one planted bug each; the repaired program is judged by what it prints for the grader's data."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.messages import ErrorType
from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "python-bugfix"
category = "bug fixing"
tools: tuple[str, ...] = ("python3", "sed")
depths = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A broken program; `{script}` in `says` stands for its path. It reads standard input."""

    stem: str
    code: str
    says: tuple[str, str, str]
    thought: str
    fix: str
    """A sed script that repairs it."""
    wrong_fix: str
    wrong_type: ErrorType
    wrong_reason: str
    given: bytes
    printed: list[str]


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent repairs."""
    bugs = [make(rng) for make in rng.sample(_BUGS, depth)]
    scripts = [
        f"tools/{bug.stem}_{term}.py" for bug, term in zip(bugs, words.distinct(rng, words.TERMS, depth), strict=True)
    ]
    return assemble(
        family=name,
        title="Fix Python programs" if depth > 1 else "Fix a Python program",
        place=place,
        openings=(
            f"Repair what is broken in {place.directory}/tools, in place; the programs read standard input and are run with python3.",
            f"Something in {place.directory}/tools doesn't do what it should. Please correct it there under the same name (python3 runs it and feeds it standard input).",
            f"I get wrong results from {place.directory}/tools, programs for python3 that read standard input. They have to be fixed where they are.",
        ),
        steps=[_step(bug, script, place) for bug, script in zip(bugs, scripts, strict=True)],
        files=[text_file(place, script, bug.code, mode=0o755) for bug, script in zip(bugs, scripts, strict=True)],
        initial_checks=(present(place.directory, scripts),),
    )


def _step(bug: Bug, script: str, place: Place) -> Step:
    path = f"{place.directory}/{script}"
    first, second, third = (text.format(script=path) for text in bug.says)
    return Step(
        says=(first, second, third),
        thought=bug.thought,
        command=edit(script, bug.fix),
        checks=(_prints(path, bug),),
        mistakes=(
            botched(bug.wrong_type, script, bug.wrong_fix, bug.wrong_reason),
            slip(
                "verification_failure",
                f"python3 -m py_compile {script} && rm -rf tools/__pycache__",
                "It compiles, so it is in order.",
            ),
            beside(script, bug.fix),
        ),
    )


def _prints(path: str, bug: Bug) -> str:
    return check(
        path,
        "prints",
        "import tempfile",
        "",
        "read_bytes(path)",
        "with tempfile.NamedTemporaryFile() as data:",
        f"    data.write({bug.given!r})",
        "    data.flush()",
        "    os.chmod(data.name, 0o644)",
        "    text = run('bash', '-c', 'python3 -I \"$1\" < \"$2\" 2> /dev/null; echo \"exit $?\"', 'bash', path, data.name)",
        f"assert text.splitlines() == {[*bug.printed, 'exit 0']!r}, f'{{path}} prints {{text[:300]!r}}'",
    )


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _window(rng: random.Random) -> Bug:
    size, numbers = rng.randint(3, 5), [rng.randint(1, 99) for _ in range(rng.randint(9, 14))]
    sums = [str(sum(numbers[n : n + size])) for n in range(len(numbers) - size + 1)]
    return Bug(
        stem="window",
        code=f'"""Sums of every {size} neighbouring numbers."""\nimport sys\n\nnumbers = [int(line) for line in sys.stdin]\nfor start in range(len(numbers) - {size}):\n    print(sum(numbers[start:start + {size}]))\n',
        says=(
            f"{{script}} reads a number per line and should print the sum of every {size} neighbouring numbers, first to last; the last sum is missing.",
            f"Fix {{script}}: of n numbers (one a line) it must print n - {size - 1} sums, one for each run of {size} neighbours, in order, but it stops one short.",
            f"The last line is missing in what {{script}} prints, the sums of each {size} numbers in a row (numbers come one a line).",
        ),
        thought="The range ends one too early.",
        fix=f"'s/len(numbers) - {size})/len(numbers) - {size - 1})/'",
        wrong_fix=f"'s/range(len(numbers) - {size})/range(len(numbers))/'",
        wrong_type="analysis_error",
        wrong_reason="Running to the end of the list can't miss anything.",
        given=_lines(*map(str, numbers)),
        printed=sums,
    )


def _ranking(rng: random.Random) -> Bug:
    names = words.distinct(rng, words.PEOPLE, rng.randint(6, 9))
    points = [9, 10, 100, *rng.sample(range(11, 99), len(names) - 3)]
    rng.shuffle(points)
    top = sorted(zip(points, names, strict=True), reverse=True)
    unit = rng.choice(words.TERMS)
    return Bug(
        stem="ranking",
        code=f'"""Ranking by {unit}."""\nimport sys\n\nrows = [line.split() for line in sys.stdin]\nrows.sort(key=lambda row: row[1], reverse=True)\nfor name, points in rows:\n    print(name, points)\n',
        says=(
            "{script} reads lines `NAME NUMBER` and should print them with the largest number first; it compares the numbers as text.",
            "Correct {script}: its lines `NAME NUMBER` have to come out by number, largest first, and at the moment 9 is above 100.",
            "The order that {script} puts lines `NAME NUMBER` into is odd, 9 comes before 100. Largest number first is what I want.",
        ),
        thought="The key has to be a number.",
        fix="'s/lambda row: row\\[1\\]/lambda row: int(row[1])/'",
        wrong_fix="'s/, reverse=True//'",
        wrong_type="command_error",
        wrong_reason="The order is the wrong way round.",
        given=_lines(*(f"{who} {number}" for who, number in zip(names, points, strict=True))),
        printed=[f"{who} {number}" for number, who in top],
    )


def _average(rng: random.Random) -> Bug:
    numbers = [rng.randint(1, 40) for _ in range(7)]
    numbers[0] += (3 - sum(numbers)) % 7
    label = rng.choice(words.STEMS)
    return Bug(
        stem="average",
        code=f'"""Average of the numbers given."""\nimport sys\n\nnumbers = [int(line) for line in sys.stdin if line.strip()]\nprint("{label}", round(sum(numbers) // len(numbers), 2))\n',
        says=(
            f"{{script}} reads whole numbers, one per line, and should print `{label}` and their average rounded to two decimals; it drops the decimals.",
            f"The average that {{script}} prints behind `{label}` for the numbers it reads (one a line) is always whole; it should be rounded to two decimals.",
            f"{{script}} loses what is behind the point: after `{label}` I expect the mean of the given numbers (one a line), rounded to two places.",
        ),
        thought="// divides whole numbers; / keeps the fraction.",
        fix="'s#sum(numbers) // len#sum(numbers) / len#'",
        wrong_fix="'s/round(sum(numbers) \\(.*\\), 2)/float(sum(numbers) \\1)/'",
        wrong_type="analysis_error",
        wrong_reason="As a float the result keeps its decimals.",
        given=_lines(*map(str, numbers)),
        printed=[f"{label} {round(sum(numbers) / 7, 2)}"],
    )


def _encoding(rng: random.Random) -> Bug:
    pairs = [
        (a, b)
        for a, b in (("Café", "Zoë"), ("Müller", "Ångström"), ("Señora", "Über"), ("Élan", "Köln"))
        for _ in range(2)
    ]
    lines = [word for pair in rng.sample(pairs, 4) for word in pair] + words.distinct(rng, words.STEMS, 2)
    letter = rng.choice(words.TERMS)
    return Bug(
        stem="lengths",
        code=f'"""Lengths of words, for the {letter} list."""\nimport sys\n\nfor line in sys.stdin.buffer:\n    word = line.decode("latin-1").rstrip("\\n")\n    print(len(word))\n',
        says=(
            "{script} reads UTF-8 text and should print the number of characters of each line, without the line end; letters with accents count twice now.",
            "Repair {script}: for each line of UTF-8 input it has to print how many characters it has (line end aside), but é or ü count as two.",
            "{script} counts characters per line, and every accent makes it one too many. The input is UTF-8, the line end is not to be counted.",
        ),
        thought="The bytes are decoded with the wrong encoding.",
        fix="'s/latin-1/utf-8/'",
        wrong_fix='\'s/line.decode("latin-1")/line/; s/"\\\\n"/b"\\\\n"/\'',
        wrong_type="command_error",
        wrong_reason="Without decoding there is no wrong encoding.",
        given=_lines(*lines),
        printed=[str(len(word)) for word in lines],
    )


def _shared(rng: random.Random) -> Bug:
    people, things = words.distinct(rng, words.PEOPLE, 3), words.distinct(rng, words.PRODUCTS, 5)
    rows = [(person, thing) for person in people for thing in rng.sample(things, rng.randint(1, 3))]
    groups = {person: [thing for who, thing in rows if who == person] for person in people}
    title = rng.choice(words.AREAS)
    return Bug(
        stem="groups",
        code=f'"""Who has what in {title}."""\nimport sys\n\n\ndef add(thing, things=[]):\n    things.append(thing)\n    return things\n\n\ngroups = {{}}\nfor line in sys.stdin:\n    name, thing = line.split()\n    groups[name] = add(thing, groups[name]) if name in groups else add(thing)\nfor name, things in groups.items():\n    print(name, *things)\n',
        says=(
            "{script} reads lines `NAME THING` and should print each name with its own things, in the order in which they came; now everybody gets everything.",
            "Fix {script}: from lines `NAME THING` it makes one line per name with the things of that name, as they came, but all names share one list.",
            "In the output of {script} every name has all the things. It should only be those that stood behind that name in the lines `NAME THING`, in that order.",
        ),
        thought="The default list is made once and shared by all calls.",
        fix="'s/add(thing)$/add(thing, [])/'",
        wrong_fix="'s/return things$/return list(things)/'",
        wrong_type="analysis_error",
        wrong_reason="A copy of the list keeps the groups apart.",
        given=_lines(*(f"{who} {thing}" for who, thing in rows)),
        printed=[" ".join((who, *got)) for who, got in groups.items()],
    )


_BUGS = (_window, _ranking, _average, _encoding, _shared)
