"""Crontab lines: when they fire, in five fields and in words, and how two of them are compared.

Lines are compared by when they fire and what they run, so `1-5`, `mon-fri` and `1,2,3,4,5` are the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

_FIRES = """\
def numbers(field, low, high, names):
    found = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            first, last, dash = str(low), str(high), "-"
        first, last = names.get(first, first), names.get(last, last)
        assert first.isdigit() and (last.isdigit() or not dash) and (step.isdigit() and int(step) or not step), f"bad field {field!r}"
        end = int(last) if dash else high if step else int(first)
        found |= set(range(int(first), end + 1, int(step or 1)))
    assert found and min(found) >= low and max(found) <= high, f"bad field {field!r}"
    return found


def fires(line):
    fields = line.split(None, 5)
    assert len(fields) == 6, f"no crontab line: {line!r}"
    months = dict(zip("jan feb mar apr may jun jul aug sep oct nov dec".split(), map(str, range(1, 13))))
    days = dict(zip("sun mon tue wed thu fri sat".split(), "0123456"))
    bounds = [(0, 59, {}), (0, 23, {}), (1, 31, {}), (1, 12, months), (0, 7, days)]
    times = [sorted(numbers(field, *bound)) for field, bound in zip(fields, bounds)]
    times[4] = sorted({day % 7 for day in times[4]})
    return times, fields[5].strip()

"""

_COMPARE = """\


lines = [line.strip() for line in LINES]
found = [fires(line) for line in lines if line and not line.startswith("#")]
assert sorted(found) == sorted(map(fires, expected)), "the crontab has other lines"
"""

READER = _FIRES + _COMPARE.replace("LINES", "read_lines(path)")
"""Body of a check: the lines of the file are those of `expected`."""

INSTALLED = _FIRES + _COMPARE.replace("LINES", "run('crontab', '-l').splitlines()")
"""Body of a check: the lines of the agent's installed crontab are those of `expected`."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When something runs, as a crontab's five fields and in words."""

    fields: str
    words: str
    off_by: str
    """The fields as someone gets them wrong."""


def draw_rule(rng: random.Random) -> Rule:
    """One of five forms."""
    hour, day = rng.randint(1, 22), rng.randint(2, 6)
    minute = rng.choice([minute for minute in range(1, 59) if minute != hour])
    at, late = f"{hour:02d}:{minute:02d}", hour + 1
    return rng.choice(
        (
            Rule(
                fields=f"{minute} {hour} * * 1-5",
                words=f"at {at} from Monday to Friday",
                off_by=f"{hour} {minute} * * 1-5",
            ),
            Rule(
                fields=f"{minute} {hour} * * {day}",
                words=f"every {_DAYS[day]} at {at}",
                off_by=f"{minute} {hour} {day} * *",
            ),
            Rule(
                fields=f"{minute} {hour} {day * 4} * *",
                words=f"on day {day * 4} of every month at {at}",
                off_by=f"{minute} {hour} * {day} *",
            ),
            Rule(
                fields=f"*/{day * 5 if day != 5 else 20} {hour}-{late} * * *",
                words=f"every day in the hours from {hour} to {late} ({hour}:00 to {late}:59), every {day * 5 if day != 5 else 20} minutes starting at minute 0",
                off_by=f"{day * 5 if day != 5 else 20} {hour}-{late} * * *",
            ),
            Rule(
                fields=f"{minute} */{day if day < 5 else 6} * * *",
                words=f"every day at minute {minute} of every {day if day < 5 else 6}th hour, counted from hour 0",
                off_by=f"*/{minute} {day if day < 5 else 6} * * *",
            ),
        )
    )
