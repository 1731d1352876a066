"""Shell scripts with one planted bug each: what they should do is told, the cause is not.

The fixed script is judged by what it does with data of the grader's own, run as the agent user.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from generators.messages import ErrorType
from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "script-bugfix"
category = "scripting"
tools: tuple[str, ...] = ("bash", "sed", "awk")
depths = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A broken script. `{script}` in `says` and the commands stands for its path."""

    stem: str
    code: str
    says: tuple[str, str, str]
    thought: str
    fix: str
    """A sed script that repairs it."""
    wrong_fix: str
    wrong_type: ErrorType
    wrong_reason: str
    data: dict[str, str]
    """The grader's files: name to content."""
    runs: tuple[tuple[Sequence[str], Sequence[str]], ...]
    """Arguments (`@` is the directory of the data) and what the repaired script prints, its status in the last line."""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    bugs = [make(rng) for make in rng.sample(_BUGS, depth)]
    endings = words.distinct(rng, words.TERMS, depth)
    scripts = [
        f"bin/{bug.stem}-{ending}-{rng.choice(words.STEMS)}.sh" for bug, ending in zip(bugs, endings, strict=True)
    ]
    return assemble(
        family=name,
        title="Fix shell scripts" if depth > 1 else "Fix a shell script",
        place=place,
        openings=(
            f"Repair what is broken in {place.directory}/bin, in place; the scripts are run with bash.",
            f"Something is wrong in {place.directory}/bin and I can't see what. Please correct it there, under the same name (we call it with bash).",
            f"There are bugs in {place.directory}/bin. I need the scripts fixed where they are; bash runs them.",
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
        checks=(_behaves(path, bug),),
        mistakes=(
            botched(bug.wrong_type, script, bug.wrong_fix, bug.wrong_reason),
            slip(
                "verification_failure",
                f"bash -n {script} && chmod +x {script}",
                "bash finds no syntax error in it, so it is in order.",
            ),
            beside(script, bug.fix),
        ),
    )


def _behaves(path: str, bug: Bug) -> str:
    return check(
        path,
        "behaves",
        "import shutil",
        "import tempfile",
        "",
        f"data = {bug.data!r}",
        "read_bytes(path)",
        "folder = tempfile.mkdtemp()",
        "try:",
        "    os.chmod(folder, 0o777)",
        "    for name, content in data.items():",
        "        Path(folder, name).write_text(content)",
        f"    for arguments, expected in {[(list(given), list(printed)) for given, printed in bug.runs]!r}:",
        "        given = [part.replace('@', folder) for part in arguments]",
        "        text = run('bash', '-c', 'bash \"$@\" 2> /dev/null; echo \"exit $?\"', 'bash', path, *given, cwd=folder)",
        "        assert text.splitlines() == expected, f'{path} prints {text[:300]!r} for {arguments}'",
        "finally:",
        "    shutil.rmtree(folder)",
    )


def _blanks_in_names(rng: random.Random) -> Bug:
    names = [f"{rng.choice(words.TERMS)} {file}" for file in words.file_names(rng, 3, (".log",))] + words.file_names(
        rng, 2, (".log",)
    )
    data = {file: words.prose(rng, rng.randint(1, 9)) for file in dict.fromkeys(names)}
    total = sum(text.count("\n") for text in data.values())
    return Bug(
        stem="lines",
        code='#!/bin/bash\n# Number of lines in all .log files of a directory: lines DIRECTORY\ntotal=0\nfor file in "$1"/*.log; do\n  count=$(wc -l < $file)\n  total=$((total + count))\ndone\necho "$total"\n',
        says=(
            "{script} DIRECTORY should print the total number of lines of all .log files in the directory, as one number; it fails for files with blanks in their names.",
            "Fix {script}: called with a directory it is meant to print one number, the lines of all its .log files together, but files whose names have blanks in them are not counted.",
            "The total that {script} prints for a directory (lines in all .log files there, a single number) is wrong as soon as a file name contains a blank. Make that work.",
        ),
        thought="$file is unquoted in the redirection; it needs quotes.",
        fix="""'s/< \\$file)/< "$file")/'""",
        wrong_fix="""'s/for file in .*; do/for file in $(ls "$1" | grep log$); do/'""",
        wrong_type="analysis_error",
        wrong_reason="The loop must be what breaks the names apart, so I list them with ls.",
        data=data,
        runs=((("@",), (str(total), "exit 0")),),
    )


def _one_short(rng: random.Random) -> Bug:
    lines = [f"{number} {words.phrase(rng, 2, 4)}" for number in range(1, rng.randint(14, 24))]
    first = rng.randint(2, 6)
    last = first + rng.randint(2, 6)
    return Bug(
        stem="slice",
        code='#!/bin/bash\n# Lines FROM to TO of a file, both included: slice FILE FROM TO\nfile=$1 from=$2 to=$3\ntail -n +"$from" "$file" | head -n $((to - from))\n',
        says=(
            "{script} FILE FROM TO should print the lines FROM to TO of the file, both included; the last one is missing.",
            "Correct {script}, which gets a file and two line numbers and should print these lines and everything between. At present the final line doesn't come.",
            "Calling {script} with a file and the numbers 3 and 5 gives me lines 3 and 4 only. It is supposed to include the last one, for any two numbers.",
        ),
        thought="From and to are both included, so there is one line more than the difference.",
        fix="'s/to - from))/to - from + 1))/'",
        wrong_fix="'s/tail -n +\"$from\"/tail -n +$((from + 1))/'",
        wrong_type="analysis_error",
        wrong_reason="tail counts from zero, so the start is what is off by one.",
        data={"input.txt": "\n".join(lines) + "\n"},
        runs=(
            (("@/input.txt", str(first), str(last)), (*lines[first - 1 : last], "exit 0")),
            (("@/input.txt", "1", "1"), (lines[0], "exit 0")),
        ),
    )


def _text_comparison(rng: random.Random) -> Bug:
    limit = rng.randint(50, 90)
    counts = {
        service: rng.choice((rng.randint(2, 9), rng.randint(100, 900), limit, rng.randint(10, 99)))
        for service in words.distinct(rng, words.SERVICES, 9)
    }
    counts |= dict(zip(words.distinct(rng, words.HOSTS, 2), (rng.randint(100, 400), 9), strict=True))
    over = [who for who, count in counts.items() if count > limit]
    return Bug(
        stem="over",
        code='#!/bin/bash\n# Names whose count is above a limit: over FILE LIMIT (lines of the file: NAME COUNT)\nwhile read -r name count; do\n  if [[ $count > $2 ]]; then\n    echo "$name"\n  fi\ndone < "$1"\n',
        says=(
            "{script} FILE LIMIT reads lines of name and count and should print the names whose count is greater than the limit, in the order of the file; some names are wrong.",
            "Repair {script}: given a file of `name count` lines and a limit it has to print every name with a count above the limit, in file order, but it lists small ones and omits big ones.",
            "Not all names that {script} prints belong there. It takes a file (name and count in each line) and a limit, and should give the names with more than the limit, keeping the order.",
        ),
        thought="Inside [[ ]] the > compares texts; numbers need -gt.",
        fix="'s/ > \\$2 / -gt $2 /'",
        wrong_fix="'s/ > \\$2 / -ge $2 /'",
        wrong_type="requirement_violation",
        wrong_reason="A numeric operator instead of the textual one, the limit itself included.",
        data={"counts.txt": "".join(f"{who} {count}\n" for who, count in (counts | {"edge-case": limit}).items())},
        runs=(
            (("@/counts.txt", str(limit)), (*over, "exit 0")),
            (("@/counts.txt", "1000"), ("exit 0",)),
        ),
    )


def _lost_in_pipe(rng: random.Random) -> Bug:
    rows = [(rng.choice(words.PRODUCTS), rng.randint(2, 99)) for _ in range(rng.randint(6, 14))]
    return Bug(
        stem="total",
        code='#!/bin/bash\n# Sum of the second column: total FILE\nsum=0\ncat "$1" | while read -r item amount; do\n  sum=$((sum + amount))\ndone\necho "$sum"\n',
        says=(
            "{script} FILE should print the sum of the second column of the file as one number; it always prints 0.",
            "Find out why {script} prints 0 for every file and repair it: what it should print is the sum of the numbers in the file's second column.",
            "Whatever file I give to {script}, the answer is 0, although it is meant to add up the second column and print that sum.",
        ),
        thought="The loop runs in a subshell behind the pipe; with a redirection the sum survives.",
        fix="""-e 's/cat "$1" | while/while/' -e 's/^done$/done < "$1"/'""",
        wrong_fix="'s/^sum=0$/declare -i sum=0/'",
        wrong_type="analysis_error",
        wrong_reason="The variable has to be declared as an integer to be added to.",
        data={"items.txt": "".join(f"{item} {amount}\n" for item, amount in rows)},
        runs=((("@/items.txt",), (str(sum(amount for _, amount in rows)), "exit 0")),),
    )


def _last_line(rng: random.Random) -> Bug:
    entries = words.distinct(rng, words.PROJECTS, rng.randint(5, 9))
    return Bug(
        stem="number",
        code='#!/bin/bash\n# Number the lines of a file: number FILE\nn=0\nwhile IFS= read -r line; do\n  n=$((n + 1))\n  echo "$n:$line"\ndone < "$1"\n',
        says=(
            "{script} FILE should print every line of the file with its number and a colon in front; when the file has no newline at its end the last line is lost.",
            "Make {script} complete: it puts number and colon before each line of a file, but drops the last line if that one does not end in a newline.",
            "For some files {script} forgets the last line, namely when there is no newline after it. All lines should be numbered, like `1:first line`.",
        ),
        thought="read fails at the end of the file though it has read something; test for that too.",
        fix="""'s/read -r line; do/read -r line || [ -n "$line" ]; do/'""",
        wrong_fix="'s/^n=0$/n=1/'",
        wrong_type="analysis_error",
        wrong_reason="The counting starts too low, which costs a line at the end.",
        data={"entries.txt": "\n".join(entries)},
        runs=((("@/entries.txt",), (*(f"{number}:{entry}" for number, entry in enumerate(entries, 1)), "exit 0")),),
    )


def _octal(rng: random.Random) -> Bug:
    minutes = ["08", "09"] + [f"{rng.randint(0, 59):02d}" for _ in range(rng.randint(4, 9))]
    rng.shuffle(minutes)
    return Bug(
        stem="minutes",
        code='#!/bin/bash\n# Sum of two-digit minutes, one a line: minutes FILE\nsum=0\nwhile read -r value; do\n  sum=$((sum + value))\ndone < "$1"\necho "$sum"\n',
        says=(
            "{script} FILE should print the sum of the two-digit numbers in the file, one per line, read as decimal numbers; it breaks on 08 and 09.",
            "Repair {script}, which adds up two-digit numbers (decimal, one per line) and prints the sum. With values such as 08 or 09 it goes wrong.",
            "As soon as a file has 08 or 09 in it, {script} complains. It should just add the decimal numbers, one on each line, and print the total.",
        ),
        thought="A leading zero makes it octal; 10# forces base ten.",
        fix="'s/sum + value))/sum + 10#$value))/'",
        wrong_fix="'s/sum + value))/sum + ${value%0}))/'",
        wrong_type="command_error",
        wrong_reason="Stripping the zero makes it an ordinary number.",
        data={"minutes.txt": "".join(f"{value}\n" for value in minutes)},
        runs=((("@/minutes.txt",), (str(sum(int(value) for value in minutes)), "exit 0")),),
    )


def _hidden_failure(rng: random.Random) -> Bug:
    return Bug(
        stem="stage",
        code='#!/bin/bash\n# Copy files into a directory: stage DIRECTORY FILE...\ntarget=$1\nshift\nfailed=0\nfor file in "$@"; do\n  cp "$file" "$target/" || failed=0\ndone\necho "done"\nexit $failed\n',
        says=(
            "{script} DIRECTORY FILE... copies files and should end with status 1 if any copy failed, after trying all and printing `done`; it always ends with 0.",
            "Correct the exit status of {script}. It copies the given files into the directory named first and prints `done`; if one or more could not be copied the status must be 1 (still trying all of them and printing `done`), and now it is 0.",
            "Our jobs don't notice when {script} could not copy something: its status is 0 in any case. After going through all files and printing `done` it should return 1 if one failed.",
        ),
        thought="The variable is set to 0 on failure as well; it should become 1.",
        fix="'s/|| failed=0/|| failed=1/'",
        wrong_fix="'s/^exit .*/exit $?/'",
        wrong_type="command_error",
        wrong_reason="$? holds the status of the copying.",
        data={},
        runs=(
            (("@/.", f"@/missing-{words.token(rng, 4)}.csv", "/etc/passwd"), ("done", "exit 1")),
            (("@/.", "/etc/passwd", "/etc/group"), ("done", "exit 0")),
        ),
    )


_BUGS = (_blanks_in_names, _one_short, _text_comparison, _lost_in_pipe, _last_line, _octal, _hidden_failure)
