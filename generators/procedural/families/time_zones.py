"""Time stamps between zones: local to UTC, epoch to local, order, distance and weekday."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from generators.procedural import words, zones
from generators.procedural.checks import present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, text_file
from sandbox.spec import File

name = "time-zones"
category = "scheduling"
tools: tuple[str, ...] = ("date", "bash", "sort")
depths = range(1, 6)

_LOOP = "while read -r stamp; do {body}; done < {file}"


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    drawn = [
        job(rng, place) for job in rng.sample((_to_utc, _from_epoch, _in_order, _minutes_between, _weekdays), depth)
    ]
    files = [file for file, _ in drawn]
    names = [file.path.removeprefix(place.directory + "/") for file in files]
    return assemble(
        family=name,
        title="Convert time stamps",
        place=place,
        openings=(
            f"Time stamps in {place.directory} have to be converted; summer time counts wherever a zone has it.",
            f"I need some times converted, the files are in {place.directory}. Mind summer time where there is one.",
            f"Times in {place.directory} again! Zones are given by their tz names, with summer time as usual there.",
        ),
        steps=[step for _, step in drawn],
        files=files,
        initial_checks=(present(place.directory, names),),
        guards=tuple(unchanged(file.path, file.data) for file in files),
    )


def _moments(rng: random.Random, zone: str, count: int) -> list[datetime]:
    """Instants in winter and in summer, none in the zone's night."""
    found: dict[datetime, None] = {}
    while len(found) < count:
        month = (1, 2, 6, 7, 8, 12)[len(found) % 6]
        moment = words.moment(rng).replace(month=month, day=rng.randint(1, 28), second=0)
        if 4 <= zones.local(moment, zone).hour < 23:
            found[moment] = None
    shuffled = list(found)
    rng.shuffle(shuffled)
    return shuffled


def _input(rng: random.Random, place: Place, what: str, lines: list[str]) -> tuple[str, File]:
    file = f"{what}-{rng.choice(words.PROJECTS)}.txt"
    return file, text_file(place, file, "".join(f"{line}\n" for line in lines))


def _to_utc(rng: random.Random, place: Place) -> tuple[File, Step]:
    zone = rng.choice(zones.SUMMER)
    moments = _moments(rng, zone, rng.randint(6, 9))
    file, source = _input(rng, place, "local", [f"{zones.local(moment, zone):%Y-%m-%d %H:%M}" for moment in moments])
    target = f"{place.directory}/utc.txt"
    body = 'date -u -d "TZ=\\"{zone}\\" $stamp" +%Y-%m-%dT%H:%MZ'
    fixed = f"{int(zones.standard(zone).total_seconds() // 3600):+03d}00"
    return source, report(
        place,
        "utc.txt",
        [f"{moment:%Y-%m-%dT%H:%MZ}" for moment in moments],
        _LOOP.format(body=body.format(zone=zone), file=file),
        says=(
            f"Convert each line of {source.path}, a local time in {zone}, to UTC and write it to {target} in the form 2020-01-31T06:05Z, in the same order.",
            f"Turn the local times ({zone}) in {source.path} into UTC, line by line, and save them to {target} like this: 2020-01-31T06:05Z.",
            f"The times in {source.path} were noted on clocks in {zone}. I want them in UTC, same order, in {target}, in the form 2020-01-31T06:05Z.",
        ),
        thought='date reads a TZ="..." in front of the stamp as its zone, and -u prints UTC.',
        slips=(
            (
                "analysis_error",
                _LOOP.format(body=f'date -u -d "$stamp {fixed}" +%Y-%m-%dT%H:%MZ', file=file),
                f"The zone is {fixed} from UTC, so I append that.",
            ),
            (
                "command_error",
                _LOOP.format(body=f'TZ={zone} date -d "$stamp" +%Y-%m-%dT%H:%MZ', file=file),
                "With TZ set, date converts to UTC.",
            ),
        ),
    )


def _from_epoch(rng: random.Random, place: Place) -> tuple[File, Step]:
    zone = rng.choice(zones.SUMMER)
    moments = _moments(rng, zone, rng.randint(6, 9))
    file, source = _input(rng, place, "epoch", [f"{moment.timestamp():.0f}" for moment in moments])
    target = f"{place.directory}/local-times.txt"
    return source, report(
        place,
        "local-times.txt",
        [f"{zones.local(moment, zone):%d.%m.%Y %H:%M}" for moment in moments],
        _LOOP.format(body=f'TZ={zone} date -d "@$stamp" "+%d.%m.%Y %H:%M"', file=file),
        says=(
            f"Write the epoch seconds in {source.path} as local times of {zone} to {target}, one a line in the same order, in the form 31.01.2020 06:05.",
            f"Show the seconds since 1970 from {source.path} as times on a clock in {zone}: in {target}, in the form 31.01.2020 06:05, order unchanged.",
            f"What time was it in {zone} at the epoch stamps in {source.path}? Put that into {target} line by line, written like 31.01.2020 06:05.",
        ),
        thought="date -d @seconds with TZ set for that one command.",
        slips=(
            (
                "analysis_error",
                _LOOP.format(body='date -u -d "@$stamp" "+%d.%m.%Y %H:%M"', file=file),
                "Epoch seconds become times with date.",
            ),
            (
                "requirement_violation",
                _LOOP.format(body=f'TZ={zone} date -d "@$stamp" "+%m.%d.%Y %H:%M"', file=file),
                "Month, day and year with dots.",
            ),
        ),
    )


def _in_order(rng: random.Random, place: Place) -> tuple[File, Step]:
    rows = _calls(rng)
    while sorted(rows) == sorted(rows, key=lambda row: row[1].split()[1]):
        rows = _calls(rng)
    file, source = _input(rng, place, "calls", [line for _, line in rows])
    target = f"{place.directory}/order.txt"
    read = 'while read -r zone stamp city; do echo "$({date}) $city"; done < {file}'
    epoch = 'date -d "TZ=\\"$zone\\" $stamp" +%s'
    return source, report(
        place,
        "order.txt",
        [line.split()[2] for _, line in sorted(rows)],
        read.format(date=epoch, file=file) + " | sort -n | cut -d' ' -f2",
        says=(
            f"Each line of {source.path} has a zone, a local time in it and a name: write only the names to {target}, in the order in which these moments really came, earliest first.",
            f"Sort the entries of {source.path} (zone, local time there, name) by the actual moment and put just the names into {target}, the earliest at the top.",
            f"Which came first? {source.path} gives zone, local time in that zone and a name, and in {target} I want the names alone, ordered by the true moment from early to late.",
        ),
        thought="Turn each local time into epoch seconds, sort numerically, keep the name.",
        slips=(
            (
                "analysis_error",
                f"sort -k2 {file} | cut -d' ' -f3",
                "ISO times sort as text, so I sort by the second field.",
            ),
            (
                "requirement_violation",
                read.format(date=epoch, file=file) + " | sort -nr",
                "The seconds beside the names show the order.",
            ),
        ),
    )


def _calls(rng: random.Random) -> list[tuple[datetime, str]]:
    """Instants of one day, each with its line: zone, local time, name."""
    day = words.moment(rng).replace(hour=0, minute=0, second=0)
    rows: dict[datetime, str] = {}
    for zone, city in zip(words.distinct(rng, zones.ALL, 6), words.distinct(rng, words.CITIES, 6), strict=True):
        moment = day.replace(hour=rng.randint(0, 23), minute=rng.randint(0, 59))
        while not 4 <= zones.local(moment, zone).hour < 23 or moment in rows:
            moment = day.replace(hour=rng.randint(0, 23), minute=rng.randint(0, 59))
        rows[moment] = f"{zone} {zones.local(moment, zone):%Y-%m-%dT%H:%M} {city}"
    return list(rows.items())


def _minutes_between(rng: random.Random, place: Place) -> tuple[File, Step]:
    here, there = words.distinct(rng, zones.ALL, 2)
    while zones.standard(here) == zones.standard(there):
        here, there = words.distinct(rng, zones.ALL, 2)
    starts = _moments(rng, here, rng.randint(5, 7))
    ends = [_later(rng, start, there) for start in starts]
    rows = [
        f"{zones.local(start, here):%Y-%m-%dT%H:%M} {zones.local(end, there):%Y-%m-%dT%H:%M}"
        for start, end in zip(starts, ends, strict=True)
    ]
    file, source = _input(rng, place, "flights", rows)
    target = f"{place.directory}/minutes.txt"
    loop = "while read -r from to; do echo $(( ($({end}) - $({start})) / 60 )); done < {file}"
    seconds = 'date -d "TZ=\\"{zone}\\" ${name}" +%s'
    return source, report(
        place,
        "minutes.txt",
        [f"{(end - start).total_seconds() / 60:.0f}" for start, end in zip(starts, ends, strict=True)],
        loop.format(start=seconds.format(zone=here, name="from"), end=seconds.format(zone=there, name="to"), file=file),
        says=(
            f"Each line of {source.path} has a departure in {here} and an arrival in {there}, both in local time: write the minutes between them to {target}, one number a line, same order.",
            f"Compute how long the trips in {source.path} take (first field: start on the clocks of {here}; second: end on the clocks of {there}) and save whole minutes, line by line, to {target}.",
            f"How many minutes lie between the two times in each line of {source.path}? The first is local in {here}, the second local in {there}; only the numbers go to {target}, in the same order.",
        ),
        thought="Each time to epoch seconds in its own zone; the difference in minutes.",
        slips=(
            (
                "analysis_error",
                loop.format(start='date -u -d "$from" +%s', end='date -u -d "$to" +%s', file=file),
                "The difference of the two times is the duration.",
            ),
            (
                "requirement_violation",
                loop.format(
                    start=seconds.format(zone=here, name="from"), end=seconds.format(zone=there, name="to"), file=file
                ).replace(" / 60 )", " / 3600 )"),
                "Durations are given in hours.",
            ),
        ),
    )


def _later(rng: random.Random, start: datetime, zone: str) -> datetime:
    """Some hours after, not in the zone's night."""
    while True:
        end = datetime.fromtimestamp(start.timestamp() + 60 * rng.randint(95, 900), UTC)
        if 4 <= zones.local(end, zone).hour < 23:
            return end


def _weekdays(rng: random.Random, place: Place) -> tuple[File, Step]:
    zone = rng.choice(("Asia/Tokyo", "Australia/Brisbane", "America/Los_Angeles", "America/Denver"))
    east = zones.standard(zone).total_seconds() > 0
    moments = [
        words.moment(rng).replace(hour=rng.randint(16, 22) if east else rng.randint(1, 5))
        for _ in range(rng.randint(6, 9))
    ]
    file, source = _input(rng, place, "events", [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments])
    target = f"{place.directory}/weekdays.txt"
    return source, report(
        place,
        "weekdays.txt",
        [f"{zones.local(moment, zone):%A}" for moment in moments],
        _LOOP.format(body=f'LC_ALL=C TZ={zone} date -d "$stamp" +%A', file=file),
        says=(
            f"For each UTC stamp in {source.path} write the day of the week that it was in {zone} to {target}: English, in full (Monday), same order.",
            f"Name the weekdays, as seen from {zone}, of the UTC stamps in {source.path}: full English names in {target}, one a line in the order given.",
            f"Which day of the week was it in {zone} at the UTC times in {source.path}? Full English names such as Monday, line by line, in {target}.",
        ),
        thought="The date may differ there, so TZ is set and date prints the weekday.",
        slips=(
            (
                "analysis_error",
                _LOOP.format(body='LC_ALL=C date -u -d "$stamp" +%A', file=file),
                "The stamp has the date, so the weekday is clear.",
            ),
            (
                "requirement_violation",
                _LOOP.format(body=f'LC_ALL=C TZ={zone} date -d "$stamp" +%a', file=file),
                "The short names are common.",
            ),
        ),
    )
