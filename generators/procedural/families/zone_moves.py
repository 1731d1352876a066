"""A DNS zone during a move to other machines: addresses, serial, aliases, reverse lookups, what still points to the old net."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.checks import absent, lines_are, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, text_file

name = "zone-moves"
category = "migration between hosts"
tools: tuple[str, ...] = ("awk", "sed", "sort")
depths = range(1, 6)


@dataclass
class Scene:
    """The zone: head lines, then address records and aliases in file order, as the edits leave them."""

    at: str
    file: str
    serial: int
    head: list[str]
    hosts: dict[str, str]
    aliases: dict[str, str]
    old_net: str

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    def lines(self) -> list[str]:
        return [
            *(line.replace("SERIAL", str(self.serial)) for line in self.head),
            *(f"{host:<12} IN A     {ip}" for host, ip in self.hosts.items()),
            *(f"{alias:<12} IN CNAME {host}" for alias, host in self.aliases.items()),
        ]


def _scene(rng: random.Random, place: Place) -> Scene:
    zone = f"{rng.choice(words.PROJECTS)}.example.org"
    hosts = words.distinct(rng, words.HOSTS, 9)
    old, new = rng.sample(("192.0.2", "198.51.100", "203.0.113", "10.4.17", "10.20.8"), 2)
    numbers = rng.sample(range(20, 25), 5) + rng.sample(range(100, 199), 4)
    addresses = {
        host: f"{old if index < 6 else new}.{number}"
        for index, (host, number) in enumerate(zip(hosts, numbers, strict=True))
    }
    addresses[hosts[0]] = f"{old}.2"
    order = rng.sample(hosts, 9)
    aliases = {alias: rng.choice(hosts) for alias in words.distinct(rng, words.TERMS, 7)}
    aliases[list(aliases)[3]] = hosts[0]
    day = words.moment(rng)
    head = [
        "$TTL 3600",
        f"@            IN SOA   ns.{zone}. hostmaster.{zone}. (",
        "                      SERIAL ; serial",
        f"                      {rng.randint(1, 9)}000 600 86400 300 )",
        f"@            IN NS    ns.{zone}.",
        f"; {words.phrase(rng, 2, 4)} {old}.2",
    ]
    return Scene(
        place.directory,
        f"db.{zone}",
        int(f"{day:%Y%m%d}") * 100 + rng.randint(0, 89),
        head,
        {host: addresses[host] for host in order},
        aliases,
        old,
    )


def _numeric(ip: str) -> tuple[int, ...]:
    return tuple(map(int, ip.split(".")))


def _remaining(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rows = sorted((ip, host) for host, ip in scene.hosts.items() if ip.startswith(scene.old_net + "."))
    rows.sort(key=lambda row: _numeric(row[0]))
    net = scene.old_net.replace(".", "\\.")
    program = f'$3 == "A" && $4 ~ /^{net}\\./ {{print $4, $1}}'
    return answers.step(
        out,
        [f"{ip} {host}" for ip, host in rows],
        f"awk '{program}' {scene.file} | sort -V",
        says=(
            f"Before changing anything in it, write the A records of {scene.path} that point into {scene.old_net}.0/24 to {out} as `ADDRESS NAME`, by the last number of the address.",
            f"Which names in {scene.path} still have an A record in {scene.old_net}.0/24, as the file is now? `ADDRESS NAME` in {out}, sorted by address as numbers.",
            f"First of all: what is still in the old net {scene.old_net}.0/24, by the A records of {scene.path} as they are now? `ADDRESS NAME`, lowest address (as numbers) first, in {out}.",
        ),
        thought="Only A records count; version sort orders addresses by their numbers.",
        slips=(
            ("requirement_violation", f"awk '{program}' {scene.file} | sort -r", "Sorted addresses, as asked."),
            ("command_error", f"awk '{program}' {scene.file} | sort", "sort orders addresses."),
            (
                "analysis_error",
                f"awk '$3 == \"A\" {{print $4, $1}}' {scene.file} | sort -V",
                "The A records are what points there.",
            ),
        ),
    )


def _followed(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rows = sorted(f"{alias} {scene.hosts[host]}" for alias, host in scene.aliases.items())
    program = 'NR == FNR {if ($3 == "A") ip[$1] = $4; next} $3 == "CNAME" {print $1, ip[$4]}'
    return answers.step(
        out,
        rows,
        f"awk '{program}' {scene.file} {scene.file} | sort",
        says=(
            f"Before changing anything in it, resolve every CNAME of {scene.path} within the file and write `ALIAS ADDRESS` to {out}, sorted by alias.",
            f"To which address does each CNAME in {scene.path} lead, as the file is now? `ALIAS ADDRESS`, by alias, in {out}.",
            f"I want the aliases of {scene.path} with the address they have at the moment (all targets are in the file): `ALIAS ADDRESS`, alphabetical, in {out}.",
        ),
        thought="Addresses first, then each alias with the address of its target.",
        slips=(
            (
                "analysis_error",
                f"awk '$3 == \"CNAME\" {{print $1, $4}}' {scene.file} | sort",
                "A CNAME says where it leads.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('print $1, ip[$4]', 'print ip[$4], $1')}' {scene.file} {scene.file} | sort",
                "Alias and address are on each line.",
            ),
        ),
    )


def _serial(answers: Answers, scene: Scene) -> Step:
    old = scene.serial
    scene.serial = old + answers.rng.randint(1, 9)
    right = f"'s/{old} ; serial/{scene.serial} ; serial/'"
    return Step(
        says=(
            f"Raise the serial number of {scene.path} to {scene.serial}.",
            f"The serial of {scene.path} has to be {scene.serial} from now on; keep the rest of its line.",
            f"Don't forget the serial in {scene.path}, it becomes {scene.serial}, with nothing else changed on that line.",
        ),
        thought="The number in front of the word serial is replaced, the layout stays.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "command_error",
                scene.file,
                f"'s/.*; serial/{scene.serial} ; serial/'",
                "The serial is what stands on that line.",
            ),
            botched("requirement_violation", scene.file, f"'s/{old}/{old + 10}/'", "Any higher number will do."),
            unsaved(scene.file, right),
        ),
    )


def _move(answers: Answers, scene: Scene) -> Step:
    host = next(host for host, ip in scene.hosts.items() if ip == f"{scene.old_net}.2")
    new = f"172.16.40.{answers.rng.randint(2, 250)}"
    scene.hosts[host] = new
    net = scene.old_net.replace(".", "\\.")
    right = f"'/^{host} /s/{net}\\.2$/{new}/'"
    return Step(
        says=(
            f"Change the A record of {host} in {scene.path} from {scene.old_net}.2 to {new}; all other lines, comments included, stay.",
            f"{host} moved: its address in {scene.path} was {scene.old_net}.2 and is {new} now. No other line may change.",
            f"Please give {host} in {scene.path} its new address {new} in place of {scene.old_net}.2, and touch no other record or comment.",
        ),
        thought="Other addresses begin with the same characters, so I anchor name and end.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "analysis_error", scene.file, f"'s/{net}\\.2/{new}/'", "The old address is replaced by the new one."
            ),
            botched(
                "command_error",
                scene.file,
                f"'s/^{host} .*/{host} IN A {new}/;s/{net}\\.2/{new}/'",
                "First the record, then what is left of the old address.",
            ),
            beside(scene.file, right),
        ),
    )


def _alias(answers: Answers, scene: Scene) -> Step:
    alias = answers.rng.choice(list(scene.aliases))
    old = scene.aliases[alias]
    new = answers.rng.choice([host for host in scene.hosts if host != old])
    scene.aliases[alias] = new
    right = f"'/^{alias} /s/{old}$/{new}/'"
    return Step(
        says=(
            f"Point the CNAME {alias} in {scene.path} to {new} instead of {old}; nothing else changes.",
            f"{alias} in {scene.path} is an alias of {old}; make it one of {new}, and leave the other records alone.",
            f"From now on {alias} is {new} and no longer {old}; please change that CNAME in {scene.path} and only that.",
        ),
        thought="Restricted to the line of that alias the substitution is safe.",
        command=edit(scene.file, right),
        mistakes=(
            botched("analysis_error", scene.file, f"'s/{old}/{new}/'", "The old name is replaced by the new one."),
            botched(
                "requirement_violation",
                scene.file,
                f"'$a {alias:<12} IN CNAME {new}'",
                "A new record for the alias wins over the old one.",
            ),
            unsaved(scene.file, right),
        ),
    )


_STEPS = (_remaining, _followed, _serial, _move, _alias)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Reports about the zone as it is, then edits of it."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    source = text_file(place, scene.file, "".join(f"{line}\n" for line in scene.lines()))
    chosen = sorted(rng.sample(range(len(_STEPS)), depth))
    steps = [_STEPS[index](answers, scene) for index in chosen]
    return assemble(
        family=name,
        title="Move names to new machines",
        place=place,
        openings=(
            f"{scene.path} is a DNS zone file.",
            f"We are moving machines, and the DNS zone file {scene.path} has to keep up.",
            f"This concerns the zone file {scene.path}.",
        ),
        steps=steps,
        files=(source,),
        initial_checks=(
            present(place.directory, (scene.file,)),
            *(absent(f"{place.directory}/{file}") for file in answers.names),
        ),
        guards=(lines_are(scene.path, scene.lines()),),
    )
