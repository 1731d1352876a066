"""A list of Python requirements: what is not pinned, what differs from another list, and single pins put right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.checks import absent, lines_are, present, unchanged
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, text_file

name = "requirement-pins"
category = "dependency pinning"
tools: tuple[str, ...] = ("awk", "grep", "join", "sed", "sort")
depths = range(1, 6)


@dataclass
class Scene:
    """Requirements by package in file order, as the edits leave them; what is installed, by package."""

    at: str
    file: str
    frozen_file: str
    title: str
    wanted: dict[str, str]
    installed: dict[str, str]
    taken: set[str]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    @property
    def frozen_path(self) -> str:
        return f"{self.at}/{self.frozen_file}"

    def lines(self) -> list[str]:
        return [self.title, *(package + rule for package, rule in self.wanted.items())]

    def pick(self, rng: random.Random, fits: Callable[[str], bool]) -> str:
        """A package with a fitting rule that no other edit is about."""
        package = rng.choice([p for p, rule in self.wanted.items() if fits(rule) and p not in self.taken])
        self.taken.add(package)
        return package


def _version(rng: random.Random) -> str:
    return f"{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 19)}"


def _scene(rng: random.Random, place: Place) -> Scene:
    stems = words.distinct(rng, words.PROJECTS, 19)
    stems, extra = stems[:16], stems[16:]
    packages = [*stems, f"{stems[0]}-{rng.choice(words.TERMS)}", f"{stems[1]}-{rng.choice(words.TERMS)}"]
    installed = {package: _version(rng) for package in [*packages[:3], *packages[4:], *extra]}
    wanted = {}
    for index, package in enumerate(packages):
        own = installed.get(package, _version(rng))
        other = own + str(rng.randint(1, 9))
        form = index if index < 8 else rng.choice((0, 1, 2, 3, 5, 6))
        wanted[package] = (f"=={own}", f"=={own}", f">={own}", f"=={own}", "", f"=={other}", f"~={own}", f"=={other}")[
            form
        ]
    wanted[packages[16]], wanted[packages[17]] = f">={_version(rng)}", ""
    order = [packages[16], *rng.sample(packages[:16], 16), packages[17]]
    return Scene(
        place.directory,
        f"requirements-{rng.choice(words.TEAMS)}.txt",
        f"installed-{rng.choice(words.HOSTS)}.txt",
        f"# {words.phrase(rng, 2, 4)}==1.0",
        {package: wanted[package] for package in order},
        dict(sorted(installed.items())),
        set(),
    )


_NAME = "sed -E 's/[=<>~].*//'"


def _loose(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    return answers.step(
        out,
        sorted(package for package, rule in scene.wanted.items() if not rule.startswith("==")),
        f"grep -v -e '^#' -e == {scene.file} | {_NAME} | sort",
        says=(
            f"Write the packages of {scene.path} that are not pinned with == to {out}, names only, one per line, sorted by byte order.",
            f"Which packages in {scene.path} have no exact pin (==)? Just the names, in byte order, one a line, in {out}.",
            f"List what isn't pinned by == in {scene.path}: bare package names, sorted plainly, one on each line, in {out}.",
        ),
        thought="Neither comments nor lines with ==, and of the rest only the name.",
        slips=(
            ("analysis_error", f"grep -E '^[a-z-]+$' {scene.file} | sort", "Not pinned means without a version."),
            ("requirement_violation", f"grep -v -e '^#' -e == {scene.file} | sort", "The lines say which packages."),
        ),
    )


def _missing(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    a, b = f"<(grep -v '^#' {scene.file} | {_NAME} | sort)", f"<(sed 's/==.*//' {scene.frozen_file} | sort)"
    rows = sorted(package for package in scene.wanted if package not in scene.installed)
    rows += [f"{len(scene.wanted) - len(rows)} installed"]
    return answers.step(
        out,
        rows,
        f'{{ comm -23 {a} {b}; echo "$(comm -12 {a} {b} | wc -l) installed"; }}',
        says=(
            f"Write the packages of {scene.path} that are missing in {scene.frozen_path} to {out}, names only, sorted, one per line, followed by a last line `N installed`, N being the number of those that are there (whatever the version).",
            f"What from {scene.path} isn't in {scene.frozen_path} at all? Sorted names, one a line, in {out}, and as last line `N installed` with the number of packages that are, in any version.",
            f"Check {scene.path} against {scene.frozen_path} by name alone: the missing packages in order, one a line, then `N installed` for how many of them are there. All of it in {out}.",
        ),
        thought="Names of both lists, sorted; comm gives difference and overlap.",
        slips=(
            (
                "analysis_error",
                f'{{ comm -13 {a} {b}; echo "$(comm -12 {a} {b} | wc -l) installed"; }}',
                "What is only in one of the lists is missing.",
            ),
            (
                "command_error",
                f'{{ comm -23 {a} {b}; echo "$(wc -l < {scene.frozen_file}) installed"; }}',
                "Each line of the list is an installed package.",
            ),
        ),
    )


def _differing(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    pins = {package: rule[2:] for package, rule in scene.wanted.items() if rule.startswith("==")}
    rows = sorted(
        f"{p} {v} {scene.installed[p]}" for p, v in pins.items() if p in scene.installed and scene.installed[p] != v
    )
    program = "/^#/ {next} NR == FNR {there[$1] = $2; next} NF == 2 && $1 in there && there[$1] != $2 {print $1, $2, there[$1]}"
    return answers.step(
        out,
        rows,
        f"awk -F== '{program}' {scene.frozen_file} {scene.file} | sort",
        says=(
            f"For each package that {scene.path} pins with == to another version than {scene.frozen_path} has, write `NAME PINNED INSTALLED` to {out}, sorted by byte order; packages that aren't installed are left out.",
            f"Where do {scene.path} and {scene.frozen_path} disagree? Only == pins count, and only packages that both have: `NAME PINNED INSTALLED`, lines in byte order, in {out}.",
            f"Show me in {out} which == pins of {scene.path} don't match what {scene.frozen_path} says is installed, as `NAME PINNED INSTALLED`, lines sorted plainly; ignore what isn't installed at all.",
        ),
        thought="Split at ==, remember the installed versions, print where they differ.",
        slips=(
            (
                "analysis_error",
                f"awk -F'[=~>]=' '{program}' {scene.frozen_file} {scene.file} | sort",
                "Every rule names a version.",
            ),
            (
                "requirement_violation",
                f"awk -F== '{program.replace('$2, there[$1]}', 'there[$1], $2}')}' {scene.frozen_file} {scene.file} | sort",
                "Both versions are in the line.",
            ),
        ),
    )


def _pin(answers: Answers, scene: Scene) -> Step:
    package = next(iter(scene.wanted))
    scene.taken.add(package)
    base = package.split("-")[0]
    rule, version = scene.wanted[package], _version(answers.rng)
    scene.wanted[package] = f"=={version}"
    right = f"'s/^{package}>=.*/{package}=={version}/'"
    return Step(
        says=(
            f"Pin {package} to exactly {version} in {scene.path}, in its own line; {base} is another package and stays as it is.",
            f"In {scene.path} the line of {package} (not that of {base}) has to become an exact pin to {version}, with ==.",
            f"{package}{rule} is too loose: make it exactly {version} (==) where it stands in {scene.path}, and leave {base} alone.",
        ),
        thought="The whole name belongs into the pattern, or the other package changes too.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "analysis_error",
                scene.file,
                f"'s/^{base}[^=~>]*[=~>].*/{package}=={version}/'",
                "The line that begins with that name.",
            ),
            botched(
                "requirement_violation",
                scene.file,
                f"'s/^{package}>=.*/{package}~={version}/'",
                "A compatible release is pinned well enough.",
            ),
            unsaved(scene.file, right),
        ),
    )


def _add(answers: Answers, scene: Scene) -> Step:
    before = scene.pick(answers.rng, lambda rule: rule.startswith("=="))
    package, version = f"{answers.rng.choice(words.STEMS)}-{answers.rng.choice(words.TERMS)}", _version(answers.rng)
    pairs = list(scene.wanted.items())
    at = [name for name, _ in pairs].index(before)
    pairs.insert(at + 1, (package, f"=={version}"))
    scene.wanted = dict(pairs)
    right = f"'/^{before}==/a {package}=={version}'"
    return Step(
        says=(
            f"Add the line {package}=={version} to {scene.path}, directly below the line of {before}.",
            f"We also need {package}, exactly {version}: put the pin into {scene.path} right after the one of {before}.",
            f"Please add {package}, pinned to {version} with ==, to {scene.path}; it belongs on the line after {before}.",
        ),
        thought="Append after the line with that very name.",
        command=edit(scene.file, right),
        mistakes=(
            botched(
                "requirement_violation",
                scene.file,
                f"'$a {package}=={version}'",
                "New packages go to the end of the list.",
            ),
            botched(
                "command_error",
                scene.file,
                f"'/^{before}==/i {package}=={version}'",
                "The line goes to where the other package is.",
            ),
            beside(scene.file, right),
        ),
    )


_STEPS = (_loose, _missing, _differing, _pin, _add)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Reports about the list as it is, then edits of it."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    source = text_file(place, scene.file, "".join(f"{line}\n" for line in scene.lines()))
    frozen = text_file(place, scene.frozen_file, "".join(f"{p}=={v}\n" for p, v in scene.installed.items()))
    chosen = sorted(rng.sample(range(len(_STEPS)), depth))
    steps = [_STEPS[index](answers, scene) for index in chosen]
    return assemble(
        family=name,
        title="Pin requirements",
        place=place,
        openings=(
            f"{scene.path} lists Python requirements, one per line; {scene.frozen_path} lists what is installed, as NAME==VERSION.",
            f"I have a requirements file, {scene.path}, and a list of what is really installed, {scene.frozen_path}, with lines NAME==VERSION.",
            f"This is about {scene.path} (requirements; lines with a hash are comments) and {scene.frozen_path} (installed packages, NAME==VERSION).",
        ),
        steps=steps,
        files=(source, frozen),
        initial_checks=(
            present(place.directory, (scene.file, scene.frozen_file)),
            *(absent(f"{place.directory}/{file}") for file in answers.names),
        ),
        guards=(lines_are(scene.path, scene.lines()), unchanged(frozen.path, frozen.data)),
    )
