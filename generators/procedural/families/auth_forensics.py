"""Login records of one host after an attack: who knocked, who got in, from where, as whom."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "auth-forensics"
category = "log forensics"
tools: tuple[str, ...] = ("awk", "comm", "grep", "sed", "sort", "uniq")
depths = range(1, 6)


@dataclass(frozen=True)
class Try:
    """One attempt to log in."""

    when: datetime
    user: str
    ip: str
    kind: str
    """`Accepted`, `Failed` or `Invalid`: the last one is a failure for a name that does not exist."""

    def text(self, host: str, number: int) -> str:
        who = f"invalid user {self.user}" if self.kind == "Invalid" else self.user
        verb = "Accepted" if self.kind == "Accepted" else "Failed"
        return f"{self.when:%Y-%m-%dT%H:%M:%S} {host} sshd[{number}]: {verb} password for {who} from {self.ip} port {20000 + number} ssh2"


@dataclass(frozen=True)
class Scene:
    """Attempts, oldest first. One attacker fails often and then gets in; others only fail; friends mostly succeed."""

    at: str
    file: str
    host: str
    tries: list[Try]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    @property
    def failed(self) -> list[Try]:
        return [t for t in self.tries if t.kind != "Accepted"]


def _scene(rng: random.Random, place: Place) -> Scene:
    ips: dict[str, None] = {}
    while len(ips) < 9:
        ips[words.ipv4(rng)] = None
    addresses = list(ips)
    rng.shuffle(addresses)
    intruder, noisy, friends = addresses[0], addresses[1:5], addresses[5:]
    users = words.distinct(rng, words.PEOPLE, 6)
    strangers = words.distinct(
        rng, ("admin", "oracle", "guest", "test", "ubuntu", "pi", "ftpuser", "minecraft", "jenkins"), 5
    )
    plan = [(users[0], intruder, "Failed")] * rng.randint(6, 9) + [
        (rng.choice(strangers), intruder, "Invalid") for _ in range(3)
    ]
    for index, ip in enumerate(noisy):
        plan += [(rng.choice(strangers), ip, "Invalid") for _ in range(index + rng.randint(2, 4))]
        plan += [(rng.choice(users), ip, "Failed") for _ in range(rng.randint(1, 5))]
    for ip in friends:
        plan += [(rng.choice(users[1:]), ip, "Accepted") for _ in range(rng.randint(2, 4))]
    plan += [(users[1], friends[0], "Failed"), (users[2], friends[1], "Failed")]
    rng.shuffle(plan)
    plan.append((users[0], intruder, "Accepted"))
    when, tries = words.moment(rng).replace(hour=1), []
    for user, ip, kind in plan:
        when += timedelta(seconds=rng.randint(20, 1200))
        tries.append(Try(when, user, ip, kind))
    host = rng.choice(words.HOSTS)
    return Scene(place.directory, f"auth-{host}-{rng.choice(words.TERMS)}.log", host, tries)


_IP = "sed -E 's/.* from ([0-9.]+) .*/\\1/'"
_RANK = "sort | uniq -c | sort -k1,1nr -k2,2 | awk '{print $2, $1}'"


def _sources(answers: Answers, scene: Scene) -> Step:
    out, count = answers.fresh(), answers.rng.randint(3, 4)
    ranked = sorted(Counter(t.ip for t in scene.failed).items(), key=lambda item: (-item[1], item[0]))[:count]
    return answers.step(
        out,
        [f"{ip} {number}" for ip, number in ranked],
        f"grep ' Failed ' {scene.file} | {_IP} | {_RANK} | head -n {count}",
        says=(
            f"Write the {count} addresses with the most failed attempts in {scene.path} to {out} as `ADDRESS COUNT`, most first, ties by address in byte order.",
            f"From which {count} addresses did most failures in {scene.path} come? `ADDRESS COUNT` in {out}, highest count on top, equal ones by address as text.",
            f"Top {count} of the failing addresses in {scene.path}, please, `ADDRESS COUNT`, most failures first (same number: address as text), in {out}.",
        ),
        thought="Failed lines, reduced to the address, counted and ranked.",
        slips=(
            (
                "command_error",
                f"grep ' Failed ' {scene.file} | {_IP} | {_RANK.removeprefix('sort | ')} | head -n {count}",
                "uniq -c counts the addresses.",
            ),
            (
                "analysis_error",
                f"grep 'invalid user' {scene.file} | {_IP} | {_RANK} | head -n {count}",
                "Failures are the attempts of invalid users.",
            ),
        ),
    )


def _intruders(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    accepted = {t.ip for t in scene.tries if t.kind == "Accepted"}
    rejected = {t.ip for t in scene.failed}
    a, b = (f"<(grep ' {verb} ' {scene.file} | {_IP} | sort -u)" for verb in ("Accepted", "Failed"))
    return answers.step(
        out,
        sorted(accepted & rejected),
        f"comm -12 {a} {b}",
        says=(
            f"Write the addresses that have both failed and accepted attempts in {scene.path} to {out}, one per line, sorted by byte order.",
            f"Which addresses in {scene.path} failed at some time and were accepted at another? Sorted as text, one a line, in {out}.",
            f"I'm looking for addresses in {scene.path} with failures and with success. Plain text order, one a line, in {out}.",
        ),
        thought="Two sorted lists of addresses, and comm gives what is in both.",
        slips=(
            ("command_error", f"comm -23 {a} {b}", "comm compares the two lists."),
            (
                "analysis_error",
                f"grep ' Accepted ' {scene.file} | {_IP} | sort -u",
                "Who got in is in the accepted lines.",
            ),
        ),
    )


def _names(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    names = sorted({t.user for t in scene.tries if t.kind == "Invalid"})
    return answers.step(
        out,
        names,
        f"sed -nE 's/.* for invalid user ([^ ]+) from .*/\\1/p' {scene.file} | sort -u",
        says=(
            f"Write the names that were tried in {scene.path} but are marked invalid to {out}, each once, one per line, sorted.",
            f"Which invalid user names were tried in {scene.path}? Each once, sorted, one a line, in {out}.",
            f"I'd like to see the invalid users somebody tried in {scene.path}: just the names, alphabetically, no repeats, one a line, in {out}.",
        ),
        thought="The name follows the words invalid user.",
        slips=(
            (
                "requirement_violation",
                f"sed -nE 's/.* for invalid user ([^ ]+) from .*/\\1/p' {scene.file} | sort",
                "Sorted names are asked for.",
            ),
            (
                "analysis_error",
                f"sed -nE 's/.* Failed password for (invalid user )?([^ ]+) from .*/\\2/p' {scene.file} | sort -u",
                "Failed names are invalid.",
            ),
        ),
    )


def _before(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    last = scene.tries[-1]
    count = sum(t.ip == last.ip and t.kind == "Failed" and t.user == last.user for t in scene.tries)
    first = next(t for t in scene.tries if t.ip == last.ip)
    program = "/ Failed password for U from A / {n++} / from A / && !first {first = $1} / Accepted password for U from A / {print n; print first; print $1; exit}"
    filled = program.replace("U", last.user).replace(" A ", f" {last.ip.replace('.', chr(92) + '.')} ")
    return answers.step(
        out,
        [str(count), f"{first.when:%Y-%m-%dT%H:%M:%S}", f"{last.when:%Y-%m-%dT%H:%M:%S}"],
        f"awk '{filled}' {scene.file}",
        says=(
            f"The address {last.ip} got in as {last.user}. Write three lines about it from {scene.path} to {out}: how many attempts for {last.user} from that address failed before, the time of the first attempt of any kind from that address, and the time of the accepted one, times as in the log.",
            f"{last.ip} logged in as {last.user}, says {scene.path}. Put three lines into {out}: its number of failures for {last.user} until then, the time stamp of its very first attempt (any name), the time stamp of the success, both as they stand in the log.",
            f"Tell me how {last.ip} became {last.user} in {scene.path}. First line of {out}: failures from there for {last.user} until it worked; second: when that address showed up first, for whatever name; third: when it got in. Times as in the log.",
        ),
        thought="One pass that counts, remembers the first time and stops at the success.",
        slips=(
            (
                "analysis_error",
                f"awk '{filled.replace(f'for {last.user} from', 'for .* from', 1)}' {scene.file}",
                "All failures from there are part of it.",
            ),
            (
                "command_error",
                f"awk '{filled.replace(' && !first', '')}' {scene.file}",
                "awk stores the time of the line.",
            ),
        ),
    )


def _hours(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    counts = Counter(f"{t.when:%Y-%m-%d %H}" for t in scene.failed)
    cut = "cut -c 1-13 | tr T ' '"
    return answers.step(
        out,
        [f"{hour} {count}" for hour, count in sorted(counts.items())],
        f"grep ' Failed ' {scene.file} | {cut} | uniq -c | awk '{{print $2, $3, $1}}'",
        says=(
            f"Count the failed attempts in {scene.path} by day and hour and write `YYYY-MM-DD HH COUNT` to {out}, in order of time; hours without failures are left out.",
            f"How many failures were there in each hour of {scene.path}? `YYYY-MM-DD HH COUNT` in {out}, earliest first, only hours that have some.",
            f"Show me the failures in {scene.path} hour by hour in {out}: lines `YYYY-MM-DD HH COUNT`, oldest on top, empty hours not listed.",
        ),
        thought="The first 13 characters are day and hour; the log is in order of time.",
        slips=(
            (
                "analysis_error",
                f"cat {scene.file} | {cut} | uniq -c | awk '{{print $2, $3, $1}}'",
                "Each line of the log is an attempt.",
            ),
            ("requirement_violation", f"grep ' Failed ' {scene.file} | {cut} | uniq -c", "Count and hour are there."),
        ),
    )


_STEPS = (_sources, _intruders, _names, _before, _hours)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to one log."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    text = "".join(t.text(scene.host, number) + "\n" for number, t in enumerate(scene.tries, rng.randint(400, 9000)))
    return answers.piece(
        family=name,
        title="Follow an intruder",
        openings=(
            f"{scene.path} holds the sshd lines of {scene.host}, oldest first. An attempt failed if its line says Failed.",
            f"Somebody was busy on {scene.host}; its ssh logins are in {scene.path}, oldest first, and a failure is a line with Failed.",
            f"Please look into the logins of {scene.host} in {scene.path} (in order of time; Failed marks a failure).",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, text)],
    )
