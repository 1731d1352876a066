"""Copies of passwd, group and shadow: who may log in, who belongs where, which numbers collide."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "user-accounts"
category = "user accounts and groups"
tools: tuple[str, ...] = ("awk", "cut", "sort")
depths = range(1, 6)

_SYSTEM = (
    ("root", 0, "/root", "/bin/bash"),
    ("daemon", 1, "/usr/sbin", "/usr/sbin/nologin"),
    ("sync", 4, "/bin", "/bin/sync"),
    ("backup", 34, "/var/home/backup", "/usr/sbin/nologin"),
    ("postgres", 105, "/var/lib/postgresql", "/bin/bash"),
)


@dataclass(frozen=True)
class Account:
    """A line of passwd; `lock` is its password field in shadow."""

    name: str
    uid: int
    gid: int
    gecos: str
    home: str
    shell: str
    lock: str

    def __str__(self) -> str:
        return f"{self.name}:x:{self.uid}:{self.gid}:{self.gecos}:{self.home}:{self.shell}"


@dataclass(frozen=True)
class Scene:
    """Accounts in file order; groups by name: number and listed members."""

    at: str
    accounts: list[Account]
    groups: dict[str, tuple[int, list[str]]]


def _scene(rng: random.Random, place: Place) -> Scene:
    teams = words.distinct(rng, words.TEAMS, 4)
    numbers = {team: 2000 + n for n, team in enumerate(teams)}
    logins = words.distinct(rng, words.PEOPLE, rng.randint(14, 20))
    uids = [1000, *sorted(rng.sample([n for n in range(1001, 1032) if n != 1005], len(logins) - 3))]
    uids += rng.sample(uids[1:], 2)
    shells = [
        "/bin/bash",
        "/usr/sbin/nologin",
        "/bin/false",
        *rng.choices(("/bin/bash", "/bin/sh", "/bin/false"), k=30),
    ]
    locks = [
        "!",
        "!$6$" + words.token(rng),
        *rng.choices(("!", "$6$" + words.token(rng), "$y$" + words.token(rng)), k=30),
    ]
    people = [
        Account(
            login,
            uid,
            numbers[teams[index % 4]] if index < 8 else numbers[rng.choice(teams)],
            f"{login.title()} {rng.choice(words.SURNAMES).title()}",
            f"/home/{login}",
            shell,
            lock,
        )
        for index, (login, uid, shell, lock) in enumerate(zip(logins, uids, shells, locks, strict=False))
    ]
    system = [Account(who, uid, uid, who, home, shell, "*") for who, uid, home, shell in _SYSTEM]
    rng.shuffle(people)
    groups = {}
    for team in teams:
        others = [person.name for person in people if person.gid != numbers[team]]
        groups[team] = (numbers[team], rng.sample(others, rng.randint(3, 5)))
    return Scene(place.directory, system + people, groups)


def _logins(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    dead = ("nologin", "false")
    found = sorted(a.name for a in scene.accounts if a.uid >= 1000 and not a.shell.endswith(dead))
    return answers.step(
        out,
        found,
        "awk -F: '$3 >= 1000 && $7 !~ /(nologin|false)$/ {print $1}' passwd | sort",
        says=(
            f"Write to {out} the names of all accounts in {scene.at}/passwd whose number is 1000 or higher and whose shell is neither nologin nor false, one per line, sorted.",
            f"List the people who can really log in: accounts of {scene.at}/passwd from number 1000 on, without those whose shell is a nologin or a false. One name a line, sorted, in {out}.",
            f"Who in {scene.at}/passwd can use a shell? Only numbers from 1000 up count, and nologin and false are no shells. I'd like the sorted names in {out}, one a line.",
        ),
        thought="Third field is the number, seventh the shell; both conditions go into awk.",
        slips=(
            (
                "requirement_violation",
                "awk -F: '$7 !~ /(nologin|false)$/ {print $1}' passwd | sort",
                "The shell decides who can log in.",
            ),
            (
                "analysis_error",
                "awk -F: '$3 >= 1000 && $7 !~ /nologin$/ {print $1}' passwd | sort",
                "nologin is the shell that keeps people out.",
            ),
        ),
    )


def _members(answers: Answers, scene: Scene) -> Step:
    out, group = answers.fresh(), answers.rng.choice(list(scene.groups))
    gid, listed = scene.groups[group]
    found = sorted({a.name for a in scene.accounts if a.gid == gid} | set(listed))
    side = f"awk -F: '$1 == \"{group}\" {{print $4}}' group | tr , '\\n'"
    main = f"awk -F: '$4 == {gid} {{print $1}}' passwd"
    return answers.step(
        out,
        found,
        f"{{ {side}; {main}; }} | sort -u",
        says=(
            f"Write to {out} all members of the group {group}: those listed in {scene.at}/group and those whose primary group in {scene.at}/passwd it is; one name per line, sorted, each once.",
            f"Who is in {group}? Count both the names behind it in {scene.at}/group and the accounts of {scene.at}/passwd that have it as primary group, and put them sorted into {out}, one a line, nobody twice.",
            f"I need everybody who is in the group {group}, be it by {scene.at}/group or because it is the primary group in {scene.at}/passwd. Sorted names, no repeats, one a line, in {out}.",
        ),
        thought=f"{group} has the number {gid}; members come from the group file and from the fourth field of passwd.",
        slips=(
            ("analysis_error", f"{side} | sort -u", "The group file says who is in a group."),
            ("requirement_violation", f"{main} | sort -u", "The accounts with that group number are its members."),
        ),
    )


def _shared(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    uids = [a.uid for a in scene.accounts]
    found = sorted((a.uid, a.name) for a in scene.accounts if uids.count(a.uid) > 1)
    return answers.step(
        out,
        [f"{uid} {who}" for uid, who in found],
        "awk -F: 'NR == FNR {seen[$3]++; next} seen[$3] > 1 {print $3, $1}' passwd passwd | sort -k1,1n -k2,2",
        says=(
            f"Write to {out} every account of {scene.at}/passwd whose number another account has too, as `NUMBER NAME` with one blank, by number ascending and then by name.",
            f"Some accounts in {scene.at}/passwd share their number. Put all of those into {out}, lines `NUMBER NAME` (one blank), lowest number first, equal numbers by name.",
            f"Numbers in {scene.at}/passwd should be unique and aren't. Show me all accounts concerned in {out}: number, blank, name; sorted by number, then name.",
        ),
        thought="A first pass counts the numbers, a second prints the accounts whose number counts more than one.",
        slips=(
            (
                "command_error",
                "awk -F: 'seen[$3]++ {print $3, $1}' passwd | sort -k1,1n -k2,2",
                "An array of seen numbers finds the repeats.",
            ),
            (
                "analysis_error",
                "awk -F: 'NR == FNR {seen[$4]++; next} seen[$4] > 1 {print $4, $1}' passwd passwd | sort -k1,1n -k2,2",
                "The number stands in the fourth field.",
            ),
        ),
    )


def _free(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    taken = {a.uid for a in scene.accounts}
    free = [str(n) for n in range(1000, 1100) if n not in taken][:3]
    return answers.step(
        out,
        free,
        "comm -13 <(cut -d: -f3 passwd | sort) <(seq 1000 1099) | head -n 3",
        says=(
            f"Write the three smallest account numbers from 1000 on that nobody in {scene.at}/passwd has to {out}, one per line, ascending.",
            f"We will add three accounts. Find the lowest free numbers, not below 1000, in {scene.at}/passwd and write them to {out}, one a line, smallest first.",
            f"Which three numbers can I give to new people? The lowest ones that are unused in {scene.at}/passwd, from 1000 up, ascending, one a line, in {out}.",
        ),
        thought="The numbers from 1000 on that are not in the file; the first three of them.",
        slips=(
            (
                "analysis_error",
                "awk -F: '$3 > max {max = $3} END {for (n = 1; n <= 3; n++) print max + n}' passwd",
                "The numbers after the highest one are free for sure.",
            ),
            (
                "command_error",
                "comm -12 <(cut -d: -f3 passwd | sort) <(seq 1000 1099) | head -n 3",
                "comm compares the used numbers with the possible ones.",
            ),
        ),
    )


def _locked(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = [a.name for a in scene.accounts if a.lock.startswith("!")]
    return answers.step(
        out,
        found,
        "awk -F: '$2 ~ /^!/ {print $1}' shadow",
        says=(
            f"Write the names of the locked accounts in {scene.at}/shadow, those whose second field begins with an exclamation mark, to {out}, one per line in the order of the file.",
            f"Which accounts of {scene.at}/shadow are locked (password field starting with an exclamation mark)? Names only, in file order, one a line, in {out}.",
            f"Put the locked accounts into {out}: in {scene.at}/shadow their password field starts with an exclamation mark, a plain asterisk doesn't count. One name a line, as they come.",
        ),
        thought="Locked means that the second field starts with an exclamation mark.",
        slips=(
            ("analysis_error", "awk -F: '$2 ~ /^[!*]/ {print $1}' shadow", "An asterisk locks an account as well."),
            (
                "command_error",
                "awk -F: '$2 == \"!\" {print $1}' shadow",
                "The field of a locked account is an exclamation mark.",
            ),
        ),
    )


_STEPS = (_logins, _members, _shared, _free, _locked)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to the same three files."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    group = [f"{team}:x:{gid}:{','.join(members)}" for team, (gid, members) in scene.groups.items()]
    shadow = [f"{a.name}:{a.lock}:{rng.randint(17000, 19700)}:0:99999:7:::" for a in scene.accounts]
    return answers.piece(
        family=name,
        title="Review user accounts",
        openings=(
            f"The directory {scene.at} holds copies of a machine's passwd, group and shadow files. Sorted always means byte order.",
            f"I copied passwd, group and shadow of an old machine to {scene.at} and have to review the accounts (sorting by byte order, please).",
            f"There are saved account files (passwd, group, shadow) in {scene.at}. Where I say sorted I mean plain byte order.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[
            text_file(place, file, "".join(f"{line}\n" for line in lines))
            for file, lines in (("passwd", [str(a) for a in scene.accounts]), ("group", group), ("shadow", shadow))
        ],
    )
