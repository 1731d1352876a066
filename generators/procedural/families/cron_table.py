"""The installed crontab of a running cron: jobs added, moved, removed, and a setting, by way of `crontab`."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.crontabs import INSTALLED, draw_rule
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.services import Service

name = "cron-table"
category = "scheduling"
tools: tuple[str, ...] = ("crontab", "sed")
depths = range(1, 5)

_ROOT_SETUP = (
    "chmod 1777 /var/spool/cron/crontabs && touch /run/crond.reboot"
    " && install -o agent -g agent -m 644 /dev/null /run/crond.pid"
    " && printf 'account required pam_permit.so\\nsession required pam_permit.so\\n' > /etc/pam.d/cron",
)
"""What cron needs to run as an ordinary user: a spool, a lock and a session without privileges."""


@dataclass(kw_only=True)
class Table:
    """The installed crontab; `lines` changes with every step, so that it ends as what has to be installed."""

    lines: list[str]
    keep: list[str]
    """Lines that other steps may still use."""

    def take(self, rng: random.Random) -> tuple[str, str]:
        """One of the old lines, for one step only, with its program."""
        line = rng.choice(self.keep)
        self.keep.remove(line)
        return line, line.split()[5]


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    stems = words.distinct(rng, words.STEMS, 9)
    programs = [f"{place.directory}/bin/{stem}.sh" for stem in stems]
    old = [f"{draw_rule(rng).fields} {program} --{rng.choice(words.TERMS)}" for program in programs[:5]]
    table = Table(lines=list(old), keep=list(old))
    scripts = [text_file(place, f"bin/{stem}.sh", '#!/bin/sh\necho "$0 $*" >&2\n', mode=0o755) for stem in stems]
    jobs = rng.sample((_add, _move, _remove, _replace_program), depth)
    steps = [job(rng, table, programs.pop(), place) for job in jobs]
    return assemble(
        family=name,
        title="The agent's crontab",
        place=place,
        openings=(
            f"Cron is running on this machine and the user agent has a crontab installed, whose programs lie in {place.directory}. Change the installed crontab as follows; lines that are not mentioned must stay in force as they are.",
            f"The crontab of user agent is installed and cron runs; the programs are in {place.directory}. Change what is installed, and leave the lines alone that I don't talk about.",
            f"There is work to do in the crontab of the user agent. It's the installed one that counts, cron is running, and the programs in it lie in {place.directory}. The other lines must go on as before.",
        ),
        steps=steps,
        files=(text_file(place, "first.cron", "".join(f"{line}\n" for line in old)), *scripts),
        setup=("crontab first.cron",),
        root_setup=_ROOT_SETUP,
        services=(
            Service(
                name="cron",
                command="fakeroot cron -f",
                check='test -s /run/crond.pid && kill -0 "$(cat /run/crond.pid)"',
            ),
        ),
        initial_checks=(
            present(place.directory, ("first.cron",)),
            check(place.directory, "running", "assert run('pgrep', '-x', 'cron')"),
            check(place.directory, "installed", f"expected = {old!r}", INSTALLED),
        ),
        guards=(check(place.directory, "schedule", f"expected = {table.lines!r}", INSTALLED),),
    )


def _edited(script: str) -> str:
    """Install the crontab as sed changes it."""
    return f"crontab -l | sed {script} | crontab -"


def _add(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    rule = draw_rule(rng)
    table.lines.append(f"{rule.fields} {program}")
    undo = _edited(f"'\\#{program}#d'")
    append = "(crontab -l; echo '{line}') | crontab -"
    return Step(
        says=(
            f"Add a line that runs {program} {rule.words}.",
            f"Schedule one more job: {program}, {rule.words}.",
            f"Let {program} run {rule.words}, by a further line.",
        ),
        thought="List what is installed, add a line, install the whole.",
        command=append.format(line=f"{rule.fields} {program}"),
        mistakes=(
            slip(
                "command_error",
                append.format(line=f"{rule.off_by} {program}"),
                "I fill in the fields in the order of the sentence.",
                undo,
            ),
            slip(
                "requirement_violation",
                f"(crontab -l; echo '{rule.fields} {program}') > {place.directory}/new.cron",
                "The new crontab is written.",
                f"rm {place.directory}/new.cron",
            ),
            slip(
                "hallucination",
                append.format(line=f"{rule.fields} agent {program}"),
                "The user who runs it stands before the command.",
                undo,
            ),
        ),
    )


def _move(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = table.take(rng)
    rule = draw_rule(rng)
    while line.startswith(rule.fields):
        rule = draw_rule(rng)
    old, rest = " ".join(line.split(None, 5)[:5]), line.split(None, 5)[5]
    table.lines[table.lines.index(line)] = f"{rule.fields} {rest}"
    script = f"'\\#{what} #s#^.* /home#{{fields}} /home#'"
    right, back = script.format(fields=rule.fields), _edited(script.format(fields=old))
    return Step(
        says=(
            f"Change the line of {what} so that it runs {rule.words}; command and options stay.",
            f"Move {what} to another time: {rule.words}, with the same command and options.",
            f"The job {what} should now run {rule.words}. Its command with the options stays what it is.",
        ),
        thought="Only the five fields of that line change; then it is installed again.",
        command=_edited(right),
        mistakes=(
            slip(
                "command_error",
                _edited(script.format(fields=rule.off_by)),
                "I write the fields as they come to mind.",
                back,
            ),
            slip("verification_failure", f"crontab -l | sed {right}", "The output shows the crontab as it should be."),
            slip(
                "requirement_violation",
                f"sed -i {right} {place.directory}/first.cron",
                "The crontab came from that file.",
            ),
        ),
    )


def _remove(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = table.take(rng)
    table.lines.remove(line)
    again = f"(crontab -l; echo '{line}') | crontab -"
    return Step(
        says=(
            f"Take the line of {what} out, so that it is no longer run.",
            f"Remove the job {what}; it must not be run any more.",
            f"{what} need not run any longer: its line goes.",
        ),
        thought="Delete that one line and install the rest.",
        command=_edited(f"'\\#{what} #d'"),
        mistakes=(
            slip("analysis_error", f"crontab -l | grep -v '{what} '", "grep -v takes the line out."),
            slip("hallucination", f"crontab -d {what}", "crontab deletes a job by its program."),
            slip(
                "requirement_violation",
                _edited(f"'\\#{what} #s#{what}#{program}#'"),
                "The job runs something harmless instead.",
                _edited(f"'\\#{program} #d'"),
                again,
            ),
        ),
    )


def _replace_program(rng: random.Random, table: Table, program: str, place: Place) -> Step:
    line, what = table.take(rng)
    table.lines[table.lines.index(line)] = line.replace(what, program)
    right = f"'s#{what} #{program} #'"
    return Step(
        says=(
            f"Replace the program {what} by {program}; its times and options stay.",
            f"Let {program} take the place of {what}, at the same times and with the same options.",
            f"{what} has been replaced by {program}: correct the crontab, keeping times and options.",
        ),
        thought="The path is all that changes in that line.",
        command=_edited(right),
        mistakes=(
            slip(
                "command_error",
                _edited(f"'s#{what} .*#{program}#'"),
                "From the old path on, the line is replaced.",
                _edited(f"'s#^.*{program}$#{line}#'"),
            ),
            slip("verification_failure", f"crontab -l | sed {right}", "The output shows the new program."),
            slip(
                "requirement_violation",
                f"(crontab -l; echo '{line.replace(what, program)}') | crontab -",
                "The new program gets a line of its own.",
                _edited("'$d'"),
            ),
        ),
    )
