"""A TOML file and a .env file side by side: quoting, types, keys that contain each other."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file

name = "config-toml-dotenv"
category = "configuration"
tools: tuple[str, ...] = ("sed", "bash")
depths = range(1, 6)


@dataclass(kw_only=True)
class Setup:
    """Both files; the contents change with every step, so that they end as what the files have to hold."""

    toml: str
    at: str
    tables: dict[str, dict[str, Any]]
    variables: dict[str, str]

    @property
    def toml_path(self) -> str:
        return f"{self.at}/{self.toml}"

    @property
    def env_path(self) -> str:
        return f"{self.at}/.env"


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    setup = _setup(rng, place)
    files = (text_file(place, setup.toml, _toml(setup.tables)), text_file(place, ".env", _dotenv(rng, setup.variables)))
    jobs = sorted(rng.sample((_number, _member, _replace, _export, _example), depth), key=lambda job: job is _example)
    steps = [job(rng, setup, place) for job in jobs]
    guards = []
    if {_number, _member} & set(jobs):
        guards.append(
            check(
                setup.toml_path,
                "tables",
                f"expected = {setup.tables!r}",
                "assert read_toml(path) == expected, f'{path} does not hold what was asked for'",
            )
        )
    if {_replace, _export} & set(jobs):
        guards.append(_env_is(setup.env_path, setup.variables))
    return assemble(
        family=name,
        title=f"Settings of {setup.toml.removesuffix('.toml')}",
        place=place,
        openings=(
            f"In {place.directory} there are {setup.toml_path} (TOML) and {setup.env_path} (NAME=value lines that bash reads). All other settings stay as they are.",
            f"We configure the service in {place.directory} with two files, {setup.toml_path} in TOML and {setup.env_path} with variables for bash. Leave alone what I don't mention.",
            f"There is something to change about our settings in {place.directory}: {setup.toml_path} is TOML, {setup.env_path} gets sourced by bash, and nothing else should be different afterwards.",
        ),
        steps=steps,
        files=files,
        initial_checks=(present(place.directory, (setup.toml, ".env")),),
        guards=tuple(guards),
    )


def _setup(rng: random.Random, place: Place) -> Setup:
    tables = {
        table: {
            "port": rng.randint(1024, 9999),
            "workers": rng.randint(1, 16),
            "hosts": [f"{host}.example.org" for host in words.distinct(rng, words.HOSTS, 2)],
            "label": words.phrase(rng, 2, 3),
        }
        for table in words.distinct(rng, ("api", "batch", "cache", "edge", "mail", "report", "search", "upload"), 4)
    }
    prefix = rng.choice(words.PROJECTS).upper()
    variables = {
        "PORT": str(rng.randint(1024, 9999)),
        f"{prefix}_PORT": str(rng.randint(1024, 9999)),
        "PORT_RANGE": str(rng.randint(10, 99)),
    }
    variables |= {
        f"{term.upper()}_{rng.choice(('TOKEN', 'PATH', 'LEVEL'))}": words.token(rng)
        for term in words.distinct(rng, words.TERMS, 3)
    }
    order = rng.sample(list(variables), len(variables))
    return Setup(
        toml=f"{rng.choice(words.SERVICES)}.toml",
        at=place.directory,
        tables=tables,
        variables={key: variables[key] for key in order},
    )


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    blocks = []
    for table, settings in tables.items():
        hosts = ", ".join(f'"{host}"' for host in settings["hosts"])
        blocks.append(
            f'[{table}]\nport = {settings["port"]}\nworkers = {settings["workers"]}\nhosts = [{hosts}]\nlabel = "{settings["label"]}"\n'
        )
    return "\n".join(blocks)


def _dotenv(rng: random.Random, variables: Mapping[str, str]) -> str:
    lines = [f"{key}={value}" for key, value in variables.items()]
    return "\n".join([f"# {words.phrase(rng, 3, 5)}", *lines]) + "\n"


def _env_is(path: str, variables: Mapping[str, str]) -> str:
    return check(
        path,
        "variables",
        "read_bytes(path)",
        f"expected = {dict(variables)!r}",
        "for key, value in expected.items():",
        "    found = run('bash', '-c', 'unset \"$2\"; . \"$1\"; printf %s \"${!2}\"', 'bash', path, key)",
        "    assert found == value, f'{key} is {found!r} after reading {path}'",
        "names = [line.removeprefix('export ').split('=')[0] for line in read_lines(path) if '=' in line and not line.startswith('#')]",
        "assert sorted(names) == sorted(expected), f'{path} sets {names}'",
    )


def _table(setup: Setup, rng: random.Random) -> str:
    return rng.choice(list(setup.tables)[1:])


def _within(table: str, script: str) -> str:
    return f"'/^\\[{table}\\]/,/^\\[/ {script}'"


def _number(rng: random.Random, setup: Setup, place: Place) -> Step:
    table, key = _table(setup, rng), rng.choice(("port", "workers"))
    value = rng.randint(10000, 60000) if key == "port" else rng.randint(20, 99)
    setup.tables[table][key] = value
    path, file = setup.toml_path, setup.toml
    right = _within(table, f"s/^{key} = .*/{key} = {value}/")
    return Step(
        says=(
            f"Set {key} in the table [{table}] of {path} to the number {value}.",
            f"Change {key} of [{table}] in {path} to {value}, as a number like before.",
            f"In {path}, [{table}] should have {value} for {key} (still a number).",
        ),
        thought=f"All tables have {key}, so the substitution is limited to [{table}].",
        command=edit(file, right),
        mistakes=(
            botched("analysis_error", file, f"'s/^{key} = .*/{key} = {value}/'", f"I change the line with {key}."),
            botched(
                "requirement_violation",
                file,
                _within(table, f's/^{key} = .*/{key} = "{value}"/'),
                "Values in TOML stand in quotes.",
            ),
            beside(file, right),
            unsaved(file, right),
        ),
    )


def _member(rng: random.Random, setup: Setup, place: Place) -> Step:
    table, host = _table(setup, rng), f"{rng.choice(words.HOSTS)}.{rng.choice(words.CITIES)}.example.net"
    setup.tables[table]["hosts"].append(host)
    path, file = setup.toml_path, setup.toml
    right = _within(table, f's/^hosts = \\[.*"/&, "{host}"/')
    return Step(
        says=(
            f"Append {host} to the array hosts in the table [{table}] of {path}, as its last element.",
            f"Add one more host to [{table}] in {path}: {host} becomes the last element of the array hosts.",
            f"The hosts of [{table}] in {path} should end with one more element, {host}.",
        ),
        thought="Inside the table, after the last quoted element.",
        command=edit(file, right),
        mistakes=(
            botched(
                "command_error",
                file,
                _within(table, f's/^hosts = \\[.*"/&, {host}/'),
                "The name goes behind the last comma.",
            ),
            botched(
                "requirement_violation",
                file,
                _within(table, f's/^hosts = .*/hosts = ["{host}"]/'),
                "hosts gets the new host.",
            ),
            beside(file, right),
            unsaved(file, right),
        ),
    )


def _replace(rng: random.Random, setup: Setup, place: Place) -> Step:
    value = str(rng.randint(10000, 60000))
    setup.variables["PORT"] = value
    path = setup.env_path
    right = f"'s/^PORT=.*/PORT={value}/'"
    return Step(
        says=(
            f"Set PORT in {path} to {value}; variables that only have PORT in their names keep their values.",
            f"Change the variable PORT (exactly this name) in {path} to {value}.",
            f"PORT should be {value} in {path}, just PORT and none of the variables with similar names.",
        ),
        thought="The anchor and the equals sign keep the other names with PORT out of it.",
        command=edit(".env", right),
        mistakes=(
            botched("analysis_error", ".env", f"'s/PORT=.*/PORT={value}/'", "I look for PORT= and set it."),
            botched(
                "command_error",
                ".env",
                f"'s/^PORT=.*/PORT = {value}/'",
                "Blanks around the equals sign make it readable.",
            ),
            beside(".env", right),
            unsaved(".env", right),
        ),
    )


def _export(rng: random.Random, setup: Setup, place: Place) -> Step:
    key, value = (
        f"{rng.choice(words.STEMS).upper()}_TITLE",
        " ".join(word.title() for word in words.phrase(rng, 3, 4).split()),
    )
    price = f"{value} for ${rng.randint(2, 9)}"
    setup.variables[key] = price
    path = setup.env_path
    line = shlex.quote(f"{key}='{price}'")
    return Step(
        says=(
            f"Add the variable {key} to {path} so that bash gets exactly the text `{price}` for it.",
            f"Put one more variable into {path}: after sourcing it in bash, {key} must be `{price}`, to the letter.",
            f"In {path} we also need {key}. When bash has read the file its value has to be `{price}`, dollar sign and all.",
        ),
        thought="Blanks and a dollar sign: single quotes keep both.",
        command=f"echo {line} >> .env",
        mistakes=(
            slip("command_error", f"echo '{key}={price}' >> .env", "A .env file needs no quotes.", "sed -i '$d' .env"),
            slip(
                "analysis_error",
                f"echo '{key}=\"{price}\"' >> .env",
                "Double quotes keep the blanks together.",
                "sed -i '$d' .env",
            ),
            slip("verification_failure", f"export {key}='{price}' && echo ${key}", "The variable has its value now."),
        ),
    )


def _example(rng: random.Random, setup: Setup, place: Place) -> Step:
    target = f"{place.directory}/env.example"
    return report(
        place,
        "env.example",
        [f"{key}=" for key in setup.variables],
        "sed -n 's/^\\([A-Z0-9_]*\\)=.*/\\1=/p' .env",
        says=(
            f"Write {target} from the finished {setup.env_path}: the variables in the same order as `NAME=` lines without values, no comments.",
            f"Make a template {target} with a line `NAME=` (no value) for every variable that {setup.env_path} has in the end, in the same order and without comment lines.",
            f"For newcomers, put the names of all variables of {setup.env_path} (when you are done with it) into {target}: lines `NAME=`, nothing after the equals sign, same order, no comments.",
        ),
        thought="Keep name and equals sign of each assignment, drop the rest.",
        slips=(
            ("requirement_violation", "grep -v '^#' .env", "Without the comments the file is a fine template."),
            ("command_error", "sed 's/=.*/=/' .env", "Everything after the equals sign is cut off."),
        ),
    )
