"""Questions to a web server's access log: top clients, counts, windows of time, error rates; rotated files first."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from generators.procedural import words
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "log-analysis"
category = "log management"
tools: tuple[str, ...] = ("awk", "grep", "gzip", "sort", "uniq", "zcat")
depths = range(1, 6)


@dataclass(frozen=True)
class Hit:
    """One request."""

    ip: str
    when: datetime
    method: str
    path: str
    status: int
    size: int
    agent: str

    def __str__(self) -> str:
        stamp = self.when.strftime("%d/%b/%Y:%H:%M:%S +0000")
        return (
            f'{self.ip} - - [{stamp}] "{self.method} {self.path} HTTP/1.1" {self.status} {self.size} "-" "{self.agent}"'
        )


@dataclass(frozen=True)
class Scene:
    """The requests of a day, oldest first, and the name of the log that the questions go to."""

    rng: random.Random
    at: str
    hits: list[Hit]
    log: str
    outputs: list[str]

    def answer(self) -> str:
        """A fresh name for an answer file."""
        return self.outputs.pop()


def _hits(rng: random.Random, count: int) -> list[Hit]:
    day = words.moment(rng).replace(hour=0, minute=0, second=0)
    clients = [words.ipv4(rng) for _ in range(rng.randint(8, 12))]
    paths = [f"/{rng.choice(words.TERMS)}/{rng.choice(words.PRODUCTS)}" for _ in range(rng.randint(8, 12))]
    hits = []
    for second in sorted(rng.sample(range(86400), count)):
        path = paths[min(int(rng.expovariate(0.3)), len(paths) - 1)]
        status = rng.choices((200, 204, 301, 304, 403, 404, 500, 502, 503), (52, 5, 4, 6, 4, 14, 7, 4, 4))[0]
        hits.append(
            Hit(
                ip=clients[min(int(rng.expovariate(0.35)), len(clients) - 1)],
                when=day + timedelta(seconds=second),
                method=rng.choices(("GET", "POST", "PUT", "DELETE"), (70, 18, 7, 5))[0],
                path=path,
                status=200 if path == paths[0] and status == 404 else status,  # one path is never missing
                size=rng.randint(180, 60000),
                agent=rng.choice(words.AGENTS),
            )
        )
    return hits


def _gather(scene: Scene, old: list[str], live: str) -> Step:
    merged = f"{scene.at}/{scene.log}"
    archives = f"{old[0]} and {old[1]}"
    zipped = " ".join(old)
    return Step(
        says=(
            f"Write {merged}: all requests, oldest first, from {archives} (gzip, the first one is the oldest) followed by "
            f"{scene.at}/{live}. Keep the originals.",
            f"Join the rotated logs {archives} (gzip, oldest named first) and the live {live} into {merged}, so that the "
            "oldest request comes first; leave the originals where they are.",
            f"Put the day back together in {merged}: {archives} in this order, unpacked, and {live} at the end. The originals stay.",
        ),
        thought="The rotated files hold the earlier part of the day, so they go first, uncompressed.",
        command=f"{{ zcat {zipped}; cat {live}; }} > {scene.log}",
        checks=(lines_are(merged, [str(hit) for hit in scene.hits]),),
        mistakes=(
            slip("command_error", f"cat {zipped} {live} > {scene.log}", "cat joins files one after the other."),
            slip(
                "analysis_error",
                f"{{ cat {live}; zcat {zipped}; }} > {scene.log}",
                "The live log is the main one, so it goes first.",
            ),
            slip(
                "verification_failure",
                f"zcat {old[0]} > {scene.log} && cat {live} >> {scene.log}",
                "That should be the whole day.",
            ),
        ),
    )


def _top_clients(scene: Scene) -> Step:
    out, count = scene.answer(), scene.rng.randint(3, 5)
    ranked = sorted(Counter(hit.ip for hit in scene.hits).items(), key=lambda item: (-item[1], item[0]))[:count]
    lines = [f"{number} {ip}" for ip, number in ranked]
    sort = "sort -k1,1nr -k2,2"
    return Step(
        says=(
            f"Write the {count} client addresses with the most requests in {scene.at}/{scene.log} to {scene.at}/{out}, one line each as "
            "`COUNT ADDRESS` with a single space, most requests first, equal counts by address in byte order.",
            f"Find the {count} busiest clients of {scene.log}; {scene.at}/{out} should have a line `COUNT ADDRESS` for each (one "
            "space, no padding), highest count on top, and addresses in plain text order where counts are equal.",
            f"Who are our {count} heaviest callers in {scene.log}? Put them in {scene.at}/{out} as `COUNT ADDRESS`, one space "
            "between, largest count first; on a draw the address that sorts first as text wins.",
        ),
        thought="Count the first field, sort by count downwards and address upwards, and cut off the rest.",
        command=f"awk '{{print $1}}' {scene.log} | sort | uniq -c | LC_ALL=C {sort} | head -n {count} | awk '{{print $1, $2}}' > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "requirement_violation",
                f"awk '{{print $1}}' {scene.log} | sort | uniq -c | LC_ALL=C {sort} | head -n {count} > {out}",
                "uniq -c already prints count and address.",
            ),
            slip(
                "command_error",
                f"awk '{{print $1}}' {scene.log} | uniq -c | LC_ALL=C {sort} | head -n {count} | awk '{{print $1, $2}}' > {out}",
                "uniq counts repeated lines by itself.",
            ),
            slip(
                "analysis_error",
                f"awk '{{print $7}}' {scene.log} | sort | uniq -c | LC_ALL=C {sort} | head -n {count} | awk '{{print $1, $2}}' > {out}",
                "The seventh field is what the requests are about.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _statuses(scene: Scene) -> Step:
    out = scene.answer()
    counts = sorted(Counter(hit.status for hit in scene.hits).items())
    lines = [f"{status},{number}" for status, number in counts]
    return Step(
        says=(
            f"Write how often each status code occurs in {scene.at}/{scene.log} to {scene.at}/{out}, one `STATUS,COUNT` line each, ascending "
            "by status, without a header.",
            f"Count the requests by HTTP status in {scene.log} and save `STATUS,COUNT` lines, lowest status first and no header, "
            f"in {scene.at}/{out}.",
            f"I'd like {scene.at}/{out} to tell how many answers of each status {scene.log} has: lines like `200,31`, in order of "
            "the status, no heading.",
        ),
        thought="The status is field nine; awk can count it and sort can order it.",
        command=f"awk '{{n[$9]++}} END {{for (s in n) print s \",\" n[s]}}' {scene.log} | sort -t, -k1,1n > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "requirement_violation",
                f"awk '{{n[$9]++}} END {{for (s in n) print s \",\" n[s]}}' {scene.log} | sort -t, -k2,2nr > {out}",
                "The most frequent status is the most interesting, so it goes first.",
            ),
            slip(
                "analysis_error",
                f"awk '{{n[$8]++}} END {{for (s in n) print s \",\" n[s]}}' {scene.log} | sort -t, -k1,1n > {out}",
                "Address, two dashes, time, zone, method, path: the status must be the eighth field.",
            ),
            slip(
                "command_error",
                f"awk '{{n[$9]++}} END {{for (s in n) print s, n[s]}}' {scene.log} | sort -t, -k1,1n > {out}",
                "A comma in print puts a comma between the values.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _window(scene: Scene) -> Step:
    out = scene.answer()
    hour = scene.rng.choice(_telling_hours(scene.hits))
    number = sum(hit.when.hour == hour for hit in scene.hits)
    span = f"{hour:02d}:00:00 to {hour:02d}:59:59"
    return Step(
        says=(
            f"Count the requests in {scene.at}/{scene.log} with a time from {span} and write that number alone to {scene.at}/{out}.",
            f"How many requests came in from {span} according to {scene.log}? Just the number in {scene.at}/{out}.",
            f"Something happened in the hour {span}: put the number of requests that {scene.log} shows for it, and nothing "
            f"else, into {scene.at}/{out}.",
        ),
        thought="The hour follows the year in the time stamp, so I match it there and nowhere else.",
        command=f"grep -cE '\\[[^]]*/[0-9]{{4}}:{hour:02d}:' {scene.log} > {out}",
        checks=(lines_are(f"{scene.at}/{out}", [str(number)]),),
        mistakes=(
            slip(
                "analysis_error", f"grep -c ':{hour:02d}:' {scene.log} > {out}", "The hour stands between two colons."
            ),
            slip(
                "command_error",
                f"grep -E '/[0-9]{{4}}:{hour:02d}:' {scene.log} > {out}",
                "grep finds the requests of that hour.",
            ),
            slip(
                "requirement_violation",
                f"grep -cE '/[0-9]{{4}}:{hour:02d}:' {scene.log} | sed 's/^/requests: /' > {out}",
                "A label helps the reader.",
            ),
        ),
    )


def _telling_hours(hits: list[Hit]) -> list[int]:
    """Hours that also occur as a minute of another hour: there, a careless pattern counts too much."""
    return [hour for hour in range(24) if any(hit.when.hour != hour and hit.when.minute == hour for hit in hits)]


def _missing(scene: Scene) -> Step:
    out = scene.answer()
    paths = sorted({hit.path for hit in scene.hits if hit.status == 404})
    return Step(
        says=(
            f"List the paths that were answered with 404 in {scene.at}/{scene.log}, each once, sorted in byte order, one per line, in {scene.at}/{out}.",
            f"Collect the requested paths that gave a 404 in {scene.log}, without repeats and sorted, into {scene.at}/{out}.",
            f"Which pages are missing? A sorted list without duplicates of the paths with status 404 in {scene.log} goes to {scene.at}/{out}.",
        ),
        thought="Pick the path where the status field is exactly 404, then sort without repeats.",
        command=f"awk '$9 == 404 {{print $7}}' {scene.log} | LC_ALL=C sort -u > {out}",
        checks=(lines_are(f"{scene.at}/{out}", paths),),
        mistakes=(
            slip(
                "command_error",
                f"awk '$9 = 404 {{print $7}}' {scene.log} | LC_ALL=C sort -u > {out}",
                "The status must equal 404.",
            ),
            slip(
                "requirement_violation",
                f"awk '$9 == 404 {{print $7}}' {scene.log} > {out}",
                "These are the paths that gave 404.",
            ),
            slip(
                "analysis_error",
                f"awk '$9 >= 400 {{print $9, $7}}' {scene.log} | LC_ALL=C sort -u > {out}",
                "Missing pages are client errors.",
            ),
        ),
    )


def _error_rate(scene: Scene) -> Step:
    out = scene.answer()
    totals = Counter(hit.when.hour for hit in scene.hits)
    errors = Counter(hit.when.hour for hit in scene.hits if hit.status >= 500)
    lines = [
        f"{hour:02d} {totals[hour]} {errors[hour]} {100 * errors[hour] // totals[hour]}" for hour in sorted(totals)
    ]
    program = (
        '{split($4, t, ":"); n[t[2]]++; if ($9 >= 500) e[t[2]]++} '
        "END {for (h in n) print h, n[h], e[h] + 0, int(100 * e[h] / n[h])}"
    )
    return Step(
        says=(
            f"Write the error rate per hour of {scene.at}/{scene.log} to {scene.at}/{out}: for each hour with requests a line `HH TOTAL ERRORS "
            "PERCENT`, where errors are statuses of 500 and above and the percentage is rounded down to a whole number; ascending by hour.",
            f"Work out from {scene.log} how each hour did: {scene.at}/{out} gets lines `HH TOTAL ERRORS PERCENT` (two-digit hour, all "
            "requests, those with status 500 or more, and their share in percent cut down to an integer), earliest hour first, silent hours left out.",
            f"For every hour that occurs in {scene.log} I need `HH TOTAL ERRORS PERCENT` in {scene.at}/{out}, in order of the hour. An error "
            "is a status from 500 up; PERCENT is a whole number, rounded down.",
        ),
        thought="Split the time stamp to get the hour, count all and the 5xx ones, and print whole percentages.",
        command=f"awk '{program}' {scene.log} | sort > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip(
                "analysis_error",
                f"awk '{program.replace('>= 500', '>= 400')}' {scene.log} | sort > {out}",
                "Errors begin at 400.",
            ),
            slip(
                "requirement_violation",
                f"awk '{program.replace('int(', '(')}' {scene.log} | sort > {out}",
                "The exact share is more useful.",
            ),
            slip(
                "command_error",
                f"awk '{program.replace('t[2]', 't[3]')}' {scene.log} | sort > {out}",
                "The hour is the third part.",
            ),
        ),
        truth=("\n".join(lines),),
    )


_QUESTIONS = (_top_clients, _statuses, _window, _missing, _error_rate)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """One question to one log, or the rotated files joined first and then several questions."""
    hits = _hits(rng, rng.randint(90, 150))
    site = rng.choice(words.SERVICES)
    live, rotated = f"{site}.log", [f"{site}.log.2", f"{site}.log.1"]
    outputs = [f"{stem}{rng.choice(('.txt', '.out', '.lst'))}" for stem in words.distinct(rng, words.STEMS, 6)]
    joined = depth >= 3
    log = f"{site}-{hits[0].when:%Y%m%d}.log" if joined else live
    scene = Scene(rng, place.directory, hits, log, list(outputs))
    questions = [question(scene) for question in rng.sample(_QUESTIONS, depth - joined)]
    first, second = (len(hits) // 3, 2 * len(hits) // 3) if joined else (0, 0)
    parts = {rotated[0]: hits[:first], rotated[1]: hits[first:second], live: hits[second:]}
    files = [text_file(place, file, "".join(f"{hit}\n" for hit in part)) for file, part in parts.items() if part]
    packed = [f"{file}.gz" for file in rotated]
    return assemble(
        family=name,
        title="Read an access log",
        place=place,
        openings=(
            f"The access log of {site} in {place.directory} has to be evaluated.",
            f"I am looking into {site} on {hits[0].when:%Y-%m-%d} and its access log is in {place.directory}.",
            f"Could you look at the {site} requests in {place.directory} for me?",
        ),
        steps=[*([_gather(scene, packed, live)] if joined else []), *questions],
        files=files,
        setup=(f"gzip -n {' '.join(rotated)}",) if joined else (),
        initial_checks=(
            present(place.directory, [live, *(packed if joined else [])]),
            *(absent(f"{place.directory}/{file}") for file in outputs),
        ),
        guards=(unchanged(f"{place.directory}/{live}", files[-1].data),),
    )
