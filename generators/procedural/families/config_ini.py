"""INI files in which the same keys occur in several sections."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file

name = "config-ini"
category = "configuration"
tools: tuple[str, ...] = ("sed", "awk")
depths = range(1, 6)

_SECTIONS = ("server", "database", "cache", "mail", "queue", "metrics", "search", "storage", "auth", "scheduler")


@dataclass(kw_only=True)
class Ini:
    """The file; `sections` changes with every step, so that it ends as what the file has to be."""

    file: str
    path: str
    sections: dict[str, dict[str, str]]
    comments: list[str]
    taken: set[str] = field(default_factory=set)

    def text(self) -> str:
        blocks = [
            "\n".join([comment, f"[{section}]", *(f"{key} = {value}" for key, value in keys.items())])
            for comment, (section, keys) in zip(self.comments, self.sections.items(), strict=True)
        ]
        return "\n\n".join(blocks) + "\n"

    def pick(self, rng: random.Random) -> str:
        """A section that is not the last one and that no other step is about."""
        section = rng.choice([name for name in list(self.sections)[:-1] if name not in self.taken])
        self.taken.add(section)
        return section


Job = Callable[[random.Random, Ini, Place], Step]


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    file = f"{rng.choice(words.SERVICES)}.ini"
    ini = _ini(rng, file, f"{place.directory}/{file}")
    source = text_file(place, file, ini.text())
    jobs = sorted(rng.sample((_set, _add, _drop, _rename, _ports), depth), key=_order)
    steps = [job(rng, ini, place) for job in jobs]
    guards = (_is(ini),) if jobs != [_ports] else ()
    return assemble(
        family=name,
        title=f"Settings in {file}",
        place=place,
        openings=(
            f"The file {ini.path} is an INI file with `key = value` lines. Comments and all settings that are not mentioned stay as they are.",
            f"I need something done with the INI file {ini.path}. Keep its comments and everything that I don't mention.",
            f"This is about {ini.path}, a plain INI file; nothing else in it may change and the comments have to stay.",
        ),
        steps=steps,
        files=(source,),
        initial_checks=(present(place.directory, (file,)),),
        guards=guards,
    )


def _order(job: Job) -> int:
    """A key is renamed after it was set under its old name; ports are listed at the end."""
    return 2 if job is _ports else 1 if job is _rename else 0


def _ini(rng: random.Random, file: str, path: str) -> Ini:
    sections = {}
    for section in words.distinct(rng, _SECTIONS, 6):
        keys = {
            "host": f"{rng.choice(words.HOSTS)}.example.org",
            "port": str(rng.randint(1024, 9999)),
            "timeout": str(rng.randint(2, 90)),
            "connect_timeout": str(rng.randint(2, 20)),
            "retries": str(rng.randint(1, 9)),
        }
        keys |= {
            f"{term}_{rng.choice(('limit', 'mode', 'path'))}": words.token(rng, 4)
            for term in words.distinct(rng, words.TERMS, 2)
        }
        order = rng.sample(list(keys), len(keys))
        sections[section] = {key: keys[key] for key in order}
    comments = [f"# {words.phrase(rng, 3, 6)}" for _ in sections]
    return Ini(file=file, path=path, sections=sections, comments=comments)


def _is(ini: Ini) -> str:
    return check(
        ini.path,
        "settings",
        f"expected = {ini.sections!r}",
        "assert read_ini(path) == expected, f'the settings in {path} are not as asked'",
        f"missing = set({ini.comments!r}) - set(read_lines(path))",
        "assert not missing, f'comments were lost: {missing}'",
    )


def _within(section: str, script: str) -> str:
    """A sed script limited to one section."""
    return f"'/^\\[{section}\\]/,/^\\[/ {script}'"


def _set(rng: random.Random, ini: Ini, place: Place) -> Step:
    section, key = ini.pick(rng), rng.choice(("port", "retries", "timeout"))
    value = str(rng.randint(10000, 60000))
    ini.sections[section][key] = value
    change = f"s/^{key} = .*/{key} = {value}/"
    right = _within(section, change)
    return Step(
        says=(
            f"Set {key} in the section [{section}] of {ini.path} to {value}.",
            f"Change {key} of [{section}] in {ini.path}: it should be {value}.",
            f"The section [{section}] of {ini.path} needs the value {value} for {key}.",
        ),
        thought=f"{key} occurs in every section, so the substitution has to stay inside [{section}].",
        command=edit(ini.file, right),
        mistakes=(
            botched("analysis_error", ini.file, f"'{change}'", f"There is one {key} line to change."),
            botched(
                "command_error",
                ini.file,
                f"'/^\\[{section}\\]/a {key} = {value}'",
                "The new line goes right under the section's name.",
            ),
            beside(ini.file, right),
            unsaved(ini.file, right),
        ),
    )


def _add(rng: random.Random, ini: Ini, place: Place) -> Step:
    section, key = ini.pick(rng), f"{rng.choice(words.TEAMS).replace('-', '_')}_{rng.choice(words.STEMS)}"
    value = f"/srv/{rng.choice(words.PROJECTS)}/{rng.choice(words.AREAS)}"
    ini.sections[section][key] = value
    right = f"'/^\\[{section}\\]$/a {key} = {value}'"
    return Step(
        says=(
            f"Add the setting {key} with the value {value} to the section [{section}] of {ini.path}.",
            f"Put a new key {key} = {value} into [{section}] in {ini.path}, anywhere within that section.",
            f"Under [{section}] in {ini.path} there should also be {key} = {value}.",
        ),
        thought="A line appended after the section's header is inside the section.",
        command=edit(ini.file, right),
        mistakes=(
            slip(
                "command_error",
                f"echo '{key} = {value}' >> {ini.file}",
                "A new setting can go to the end of the file.",
                f"sed -i '$d' {ini.file}",
            ),
            botched(
                "analysis_error",
                ini.file,
                f"'1i [{section}]\\n{key} = {value}\\n'",
                f"A block of [{section}] at the top holds the new setting.",
            ),
            beside(ini.file, right),
            unsaved(ini.file, right),
        ),
    )


def _drop(rng: random.Random, ini: Ini, place: Place) -> Step:
    section = ini.pick(rng)
    index = list(ini.sections).index(section)
    del ini.sections[section]
    del ini.comments[index]
    right = f"'/^\\[{section}\\]$/,/^\\[/{{/^\\[{section}\\]$/d;/^\\[/!{{/^#/!d}}}}'"
    return Step(
        says=(
            f"Remove the section [{section}] from {ini.path} with all its settings.",
            f"Take [{section}] out of {ini.path} completely, its header and all keys under it.",
            f"We don't use [{section}] any more: it can go from {ini.path}, together with everything that is set in it.",
        ),
        thought="From the header to the next header: delete everything but comments and the next header itself.",
        command=edit(ini.file, right),
        mistakes=(
            botched("analysis_error", ini.file, f"'/^\\[{section}\\]$/d'", "Without its header the section is gone."),
            botched(
                "command_error",
                ini.file,
                f"'/^\\[{section}\\]$/,/^\\[/d'",
                "Deleting from this header to the next one removes the section.",
            ),
            beside(ini.file, right),
            unsaved(ini.file, right),
        ),
    )


def _rename(rng: random.Random, ini: Ini, place: Place) -> Step:
    new = rng.choice(("timeout_s", "timeout_seconds", "max_wait", "wait_limit", "deadline"))
    for section, keys in ini.sections.items():
        ini.sections[section] = {new if key == "timeout" else key: value for key, value in keys.items()}
    right = f"'s/^timeout = /{new} = /'"
    return Step(
        says=(
            f"Rename the key timeout to {new} in every section of {ini.path}; values stay, and so does connect_timeout.",
            f"Call the key timeout {new} from now on, in all sections of {ini.path}, with the same values (connect_timeout is another key and keeps its name).",
            f"In {ini.path} the key timeout has to be called {new} everywhere, values unchanged. Don't touch connect_timeout.",
        ),
        thought="Anchored at the start of the line the pattern misses connect_timeout.",
        command=edit(ini.file, right),
        mistakes=(
            botched("command_error", ini.file, f"'s/timeout = /{new} = /'", "The substitution renames each timeout."),
            botched(
                "requirement_violation",
                ini.file,
                f"'0,/^timeout = /s/^timeout = /{new} = /'",
                "The key is renamed where it occurs first.",
            ),
            beside(ini.file, right),
            unsaved(ini.file, right),
        ),
    )


def _ports(rng: random.Random, ini: Ini, place: Place) -> Step:
    lines = [f"{section} {keys['port']}" for section, keys in ini.sections.items()]
    target = f"{place.directory}/ports.txt"
    return report(
        place,
        "ports.txt",
        lines,
        f"""awk -F' = ' '/^\\[/ {{section = substr($0, 2, length($0) - 2)}} $1 == "port" {{print section, $2}}' {ini.file}""",
        says=(
            f"Write {target} with the ports in the finished {ini.path}: for each section a line of its name, one blank and its port, in the order of the file.",
            f"List which section of {ini.path} has which port in the end, one line `section port` per section (one blank between), in file order, in {target}.",
            f"In {target} I want the ports that {ini.path} then has, lines like `server 8080`, sections in the order in which they stand in the file.",
        ),
        thought="awk remembers the section it is in and prints it with each port.",
        slips=(
            (
                "requirement_violation",
                f"sed -n 's/^port = //p' {ini.file}",
                "The numbers in file order are what is asked for.",
            ),
            (
                "command_error",
                f"""awk -F' = ' '/^\\[/ {{section = $0}} $1 == "port" {{print section, $2}}' {ini.file}""",
                "The header line is the name of the section.",
            ),
        ),
    )
