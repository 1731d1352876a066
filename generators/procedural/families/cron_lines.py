"""Crontab files: new lines from words, broken lines repaired, next runs computed.

Lines are compared as `generators.procedural.crontabs` does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.crontabs import READER, draw_rule
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file

name = "cron-lines"
category = "scheduling"
tools: tuple[str, ...] = ("sed", "date", "awk")
depths = range(1, 6)


@dataclass(kw_only=True)
class Table:
    """A crontab file; `lines` changes with every step, so that it ends as what the file has to hold."""

    file: str
    path: str
    lines: list[str]
    keep: list[str]
    """Lines that other steps may still use."""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    file = f"{rng.choice(words.TEAMS)}.cron"
    path = f"{place.directory}/{file}"
    programs = [f"/opt/{rng.choice(words.PROJECTS)}/{stem}.sh" for stem in words.distinct(rng, words.STEMS, 10)]
    old = [f"{draw_rule(rng).fields} {program} --{rng.choice(words.TERMS)}" for program in programs[:5]]
    table = Table(file=file, path=path, lines=list(old), keep=list(old))
    source = text_file(place, file, f"# {words.phrase(rng, 3, 5)}\n" + "".join(f"{line}\n" for line in old))
    jobs = rng.sample((_add, _move, _pause, _replace_program, _next_runs), depth)
    steps = [job(rng, table, programs.pop(), place) for job in jobs]
    changed = jobs != [_next_runs]
    return assemble(
        family=name,
        title=f"Crontab of {file.removesuffix('.cron')}",
        place=place,
        openings=(
            f"The file {path} is a user's crontab (five time fields and the command) that gets installed later; lines that are not mentioned must stay in force as they are.",
            f"I keep a crontab in {path}, to be installed later on (usual form: five fields and the command). Leave the lines alone that I don't talk about.",
            f"Work with the crontab file {path}, please; it isn't installed yet, just the file counts. It has five time fields and a command per line, and the other lines must go on as before.",
        ),
        steps=steps,
        files=(source,),
        initial_checks=(present(place.directory, (file,)),),
        guards=(check(path, "schedule", f"expected = {table.lines!r}", READER),) if changed else (),
    )


def _take(rng: random.Random, table: Table) -> tuple[str, str]:
    """One of the old lines, for one step only, with its program."""
    line = rng.choice(table.keep)
    table.keep.remove(line)
    return line, line.split()[5]


def _add(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    rule = draw_rule(rng)
    line = f"{rule.fields} {program}"
    table.lines.append(line)
    undo = f"sed -i '$d' {table.file}"
    return Step(
        says=(
            f"Add a line to {table.path} that runs {program} {rule.words}.",
            f"Schedule one more job in {table.path}: {program}, {rule.words}.",
            f"Let {program} run {rule.words}, by a further line in {table.path}.",
        ),
        thought="Minute, hour, day of month, month, day of week, then the command.",
        command=f"echo '{line}' >> {table.file}",
        mistakes=(
            slip(
                "command_error",
                f"echo '{rule.off_by} {program}' >> {table.file}",
                "I fill in the fields in the order of the sentence.",
                undo,
            ),
            slip(
                "hallucination",
                f"echo '{rule.fields} agent {program}' >> {table.file}",
                "The user who runs it stands before the command.",
                undo,
            ),
            botched(
                "requirement_violation", table.file, f"'$s#.*#{line}#'", "The last line makes room for the new one."
            ),
        ),
    )


def _move(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = _take(rng, table)
    rule = draw_rule(rng)
    while line.startswith(rule.fields):
        rule = draw_rule(rng)
    rest = line.split(None, 5)[5]
    table.lines[table.lines.index(line)] = f"{rule.fields} {rest}"
    right = f"'\\#{what}#s#^.* /opt#{rule.fields} /opt#'"
    return Step(
        says=(
            f"Change the line of {what} in {table.path} so that it runs {rule.words}; command and options stay.",
            f"Move {what} in {table.path} to another time: {rule.words}, with the same command and options.",
            f"The job {what} in {table.path} should now run {rule.words}. Its command with the options stays what it is.",
        ),
        thought="Only the five fields of that line change.",
        command=edit(table.file, right),
        mistakes=(
            botched(
                "command_error",
                table.file,
                f"'\\#{what}#s#^.* /opt#{rule.off_by} /opt#'",
                "I write the fields as they come to mind.",
            ),
            botched(
                "requirement_violation",
                table.file,
                f"'\\#{what}#s#.*#{rule.fields} {what}#'",
                "A fresh line with time and program.",
            ),
            beside(table.file, right),
            unsaved(table.file, right),
        ),
    )


def _pause(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = _take(rng, table)
    table.lines.remove(line)
    right = f"'\\#{what}#s/^/# /'"
    return Step(
        says=(
            f"Disable the line of {what} in {table.path} by putting `# ` in front of it; otherwise it stays readable as it is.",
            f"Pause {what} in {table.path}: comment its line out with `# ` at the front and change nothing else about it.",
            f"Please switch {what} off in {table.path}, but only for now, so put `# ` before its line and leave the rest of the line.",
        ),
        thought="A hash sign and a blank in front of that line.",
        command=edit(table.file, right),
        checks=(
            check(
                table.path,
                "paused",
                f"assert '# ' + {line!r} in read_lines(path), 'the paused line is not there as a comment'",
            ),
        ),
        mistakes=(
            botched("requirement_violation", table.file, f"'\\#{what}#d'", "A line that is gone no longer runs."),
            botched("analysis_error", table.file, f"'\\#{what}#s#/opt#\\# /opt#'", "The command is commented out."),
            beside(table.file, right),
            unsaved(table.file, right),
        ),
    )


def _replace_program(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = _take(rng, table)
    table.lines[table.lines.index(line)] = line.replace(what, program)
    right = f"'s#{what}#{program}#'"
    return Step(
        says=(
            f"In {table.path} replace the program {what} by {program}; its times and options stay.",
            f"Let {program} take the place of {what} in {table.path}, at the same times and with the same options.",
            f"{what} has been replaced by {program}: correct {table.path}, keeping times and options.",
        ),
        thought="The path is all that changes in that line.",
        command=edit(table.file, right),
        mistakes=(
            botched(
                "command_error", table.file, f"'s#{what}.*#{program}#'", "From the old path on, the line is replaced."
            ),
            botched(
                "analysis_error",
                table.file,
                f"'s#^.*{what}#* * * * * {program}#'",
                "The line starts again with the new program.",
            ),
            beside(table.file, right),
            unsaved(table.file, right),
        ),
    )


def _next_runs(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    hour, minute, count = rng.randint(1, 22), rng.randint(1, 58), rng.randint(6, 9)
    after = words.moment(rng).replace(hour=23, minute=0, second=0)
    runs = _weekdays(after, count)
    lines = [f"{day:%Y-%m-%d} {hour:02d}:{minute:02d}" for day in runs]
    target = f"{place.directory}/next-runs.txt"
    start = f"{after:%Y-%m-%d}"
    rule = f"{minute} {hour} * * 1-5"
    loop = f"for n in $(seq {{first}} 14); do date -u -d \"{start} +$n days\" '+%u %F {hour:02d}:{minute:02d}'; done"
    pick = f"awk '$1 < 6 {{print $2, $3}}' | head -{count}"
    return report(
        place,
        "next-runs.txt",
        lines,
        f"{loop.format(first=1)} | {pick}",
        says=(
            f"Write the next {count} times at which a line `{rule} {program}` would fire after {start} 23:00 (UTC) to {target}, like 2020-01-31 06:05, one per line in order of time.",
            f"Work out when `{rule} {program}` fires after {start} 23:00 UTC and put the first {count} times into {target}, in order, in the form 2020-01-31 06:05.",
            f"If we had a line `{rule} {program}`, when would it run after {start} 23:00 UTC? I want the first {count} times in {target}, one a line, in the form 2020-01-31 06:05.",
        ),
        thought="The following days, weekends left out, at that time.",
        slips=(
            (
                "analysis_error",
                f"{loop.format(first=1)} | cut -d' ' -f2- | head -{count}",
                "It runs daily at that time.",
            ),
            ("command_error", f"{loop.format(first=-3)} | {pick}", "I begin a few days earlier to be safe."),
        ),
    )


def _weekdays(after: datetime, count: int) -> list[datetime]:
    days = (datetime(after.year, after.month, after.day, tzinfo=UTC) + timedelta(days=n) for n in range(1, 15))
    return [day for day in days if day.weekday() < 5][:count]
