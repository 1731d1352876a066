"""A small Makefile with faults: blanks for tabs, a bad variable, missing prerequisites, no .PHONY, a missing target.

The finished Makefile is judged by what make does with it in a fresh directory with other sources, run as the agent user.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "makefiles"
category = "build"
tools: tuple[str, ...] = ("make", "sed")
depths = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Project:
    """Sources, what is built from them, and the names of it all."""

    folder: str
    """Relative to the place."""
    at: str
    out: str
    sources: tuple[str, ...]
    joined: str
    ordered: str
    count: str
    clean: str
    extra: str
    extra_command: str
    extra_words: str
    fresh: dict[str, str]
    """The grader's sources."""

    @property
    def path(self) -> str:
        return f"{self.at}/Makefile"

    @property
    def file(self) -> str:
        return f"{self.folder}/Makefile"

    def makefile(self, faults: Sequence[str]) -> str:
        bad = set(faults)
        needed = f"src/{self.sources[0]}" if "prerequisites" in bad else "$(SOURCES)"
        lines = [
            f"OUT = {self.out}",
            f"SOURCES = {' '.join(f'src/{source}' for source in self.sources)}",
            "",
            f"all: $(OUT)/{self.ordered} $(OUT)/{self.count}",
            "",
            f"$(OUT)/{self.joined}: {needed}",
            "\tmkdir -p $(OUT)",
            f"{'        ' if 'tabs' in bad else chr(9)}cat $(SOURCES) > $@",
            "",
            f"$(OUT)/{self.ordered}: $(OUT)/{self.joined}",
            f"\tLC_ALL=C sort {'$OUT' if 'variable' in bad else '$(OUT)'}/{self.joined} > $@",
            "",
            f"$(OUT)/{self.count}: $(OUT)/{self.ordered}",
            "\twc -l < $< > $@",
            "",
            f"{self.clean}:",
            "\trm -rf $(OUT)",
        ]
        if "phony" not in bad:
            lines += ["", f".PHONY: all {self.clean}"]
        return "\n".join(lines) + "\n"


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    project = _project(rng, place)
    chosen = rng.sample(sorted(_JOBS), depth)
    files = [text_file(place, project.file, project.makefile(chosen))]
    files += [
        text_file(place, f"{project.folder}/src/{source}", words.prose(rng, rng.randint(3, 6)))
        for source in project.sources
    ]
    if "phony" in chosen:
        files.append(text_file(place, f"{project.folder}/{project.clean}", words.prose(rng, 1)))
    return assemble(
        family=name,
        title="Repair a Makefile",
        place=place,
        openings=(
            f"The file {project.path} (GNU make, run in {project.at}) builds texts from src/ into {project.out}/ and needs some work.",
            f"I can't get {project.path} to do what it should; `make` is called in {project.at}, sources are in src/, results go to {project.out}/.",
            f"Something about {project.path} isn't right. It joins, sorts and counts the texts in src/ and leaves the results in {project.out}/.",
        ),
        steps=[_JOBS[job](project, place) for job in chosen],
        files=files,
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
        guards=(_makes(project, chosen),),
    )


def _project(rng: random.Random, place: Place) -> Project:
    stems = words.distinct(rng, words.STEMS, 7)
    folder = words.project(rng)
    sources = tuple(f"{stem}.txt" for stem in stems[:3])
    what = {
        "first": ("head -1 $< > $@", "the first line"),
        "last": ("tail -1 $< > $@", "the last line"),
        "upper": ("tr a-z A-Z < $< > $@", "all lines with a to z turned into upper case"),
        "reversed": ("tac $< > $@", "all lines in reverse order"),
    }
    kind = rng.choice(sorted(what))
    return Project(
        folder=folder,
        at=f"{place.directory}/{folder}",
        out=rng.choice(("build", "out", "dist", "public", "generated")),
        sources=sources,
        joined=f"{stems[3]}.all",
        ordered=f"{stems[4]}.sorted",
        count=f"{stems[5]}.count",
        clean=rng.choice(("clean", "tidy", "reset", "purge")),
        extra=f"{stems[6]}.{kind}",
        extra_command=what[kind][0],
        extra_words=what[kind][1],
        fresh={source: words.prose(rng, rng.randint(3, 6)) for source in sources},
    )


def _made(project: Project, sources: dict[str, str], *, extra: bool) -> dict[str, str]:
    """What make should leave in the output directory."""
    joined = "".join(sources[source] for source in project.sources)
    lines = sorted(joined.splitlines())
    made = {
        project.joined: joined,
        project.ordered: "".join(f"{line}\n" for line in lines),
        project.count: f"{len(lines)}\n",
    }
    if extra:
        kind = project.extra.rsplit(".", 1)[1]
        result = {
            "first": lines[:1],
            "last": lines[-1:],
            "upper": [line.upper() for line in lines],
            "reversed": lines[::-1],
        }[kind]
        made[project.extra] = "".join(f"{line}\n" for line in result)
    return made


def _makes(project: Project, jobs: Sequence[str]) -> str:
    """Build, change the last source, build again, clean with a file of that name in the way."""
    changed = project.fresh | {project.sources[-1]: "an entirely new line\n" + project.fresh[project.sources[-1]]}
    extra = "target" in jobs
    return check(
        project.path,
        "makes",
        "import shutil",
        "import tempfile",
        "",
        f"sources = {project.fresh!r}",
        f"first = {_made(project, project.fresh, extra=extra)!r}",
        f"second = {_made(project, changed, extra=extra)!r}",
        "makefile = read_bytes(path)",
        "folder = tempfile.mkdtemp()",
        f"out = os.path.join(folder, {project.out!r})",
        "try:",
        "    os.chmod(folder, 0o777)",
        "    os.mkdir(os.path.join(folder, 'src'))",
        f"    Path(folder, {project.clean!r}).touch()",
        "    Path(folder, 'Makefile').write_bytes(makefile)",
        "    for name, text in sources.items():",
        "        Path(folder, 'src', name).write_text(text)",
        "    for expected in (first, second):",
        "        run('make', '-s', cwd=folder)",
        "        found = {name: read_text(os.path.join(out, name)) for name in expected}",
        "        assert found == expected, f'make leaves {found}'",
        f"        source = Path(folder, 'src', {project.sources[-1]!r})",
        f"        source.write_text({changed[project.sources[-1]]!r})",
        "        later = source.stat().st_mtime + 2",
        "        os.utime(source, (later, later))",
        f"    run('make', '-s', {project.clean!r}, cwd=folder)",
        f"    assert not os.path.exists(out), 'make {project.clean} leaves {project.out}'",
        "finally:",
        "    shutil.rmtree(folder)",
    )


def _tabs(project: Project, place: Place) -> Step:
    right = "'s/^ \\{8\\}/\\t/'"
    return Step(
        says=(
            f"Make {project.path} readable for make, which stops with `missing separator` at one of its recipe lines.",
            f"Correct the recipe line of {project.path} for which make reports a `missing separator`.",
            f"There is a `missing separator` when I run make with {project.path}; that shouldn't be.",
        ),
        thought="Recipes begin with a tab; one line has eight blanks.",
        command=edit(project.file, right),
        mistakes=(
            botched(
                "analysis_error", project.file, "'s/^ \\{8\\}/    /'", "Eight blanks are too deep, four are usual."
            ),
            botched("command_error", project.file, "'s/^ \\{8\\}//'", "Without the blanks the line is in order."),
            beside(project.file, right),
            unsaved(project.file, right),
        ),
    )


def _variable(project: Project, place: Place) -> Step:
    right = "'s/\\$OUT/$(OUT)/'"
    return Step(
        says=(
            f"Fix the reference to a variable in the rule for {project.ordered} in {project.path}: at present it looks for a file in a directory UT.",
            f"Correct the rule for {project.ordered} in {project.path}, which looks in a directory called UT because of a misspelled variable reference.",
            f"In {project.path} the rule for {project.ordered} tries to read from UT/. The variable isn't written properly there.",
        ),
        thought="$OUT is $O followed by UT; the name needs parentheses.",
        command=edit(project.file, right),
        mistakes=(
            botched("command_error", project.file, "'s/\\$OUT/$$OUT/'", "The dollar sign has to be doubled."),
            botched("analysis_error", project.file, "'s/^OUT = /UT = /'", "The variable must be called UT."),
            beside(project.file, right),
            unsaved(project.file, right),
        ),
    )


def _prerequisites(project: Project, place: Place) -> Step:
    right = f"'/{project.joined}: src/s/: .*/: $(SOURCES)/'"
    return Step(
        says=(
            f"Let {project.joined} in {project.path} depend on all the sources, so that a change to any of them rebuilds it.",
            f"Complete the prerequisites of {project.joined} in {project.path}: whichever source changes, make has to build it again.",
            f"When I edit any source but the first, make says that nothing is to be done. In {project.path}, {project.joined} should be rebuilt for every one of them.",
        ),
        thought="The rule names one source only; SOURCES has them all.",
        command=edit(project.file, right),
        mistakes=(
            botched(
                "analysis_error",
                project.file,
                f"'/{project.joined}: src/s/: .*/: src\\/{project.sources[1]}/'",
                "The other source is the one that it depends on.",
            ),
            botched(
                "command_error",
                project.file,
                f"'/{project.joined}: src/s/: .*/: src/'",
                "Depending on the directory covers all the files in it.",
            ),
            beside(project.file, right),
            unsaved(project.file, right),
        ),
    )


def _phony(project: Project, place: Place) -> Step:
    line = f".PHONY: all {project.clean}"
    return Step(
        says=(
            f"Make `make {project.clean}` work although a file {project.at}/{project.clean} exists (the file stays), by a change to {project.path}.",
            f"Change {project.path} so that `make {project.clean}` always removes {project.out}/, even with a file named {project.clean} lying around, which must not be deleted.",
            f"`make {project.clean}` claims to be up to date because there is a file of that name. Keep the file and let {project.path} clean up regardless.",
        ),
        thought="The target is no file: declare it phony.",
        command=f"printf '\\n%s\\n' '{line}' >> {project.file}",
        checks=(check(f"{project.at}/{project.clean}", "is_still_there", "read_bytes(path)"),),
        mistakes=(
            slip(
                "requirement_violation",
                f"mv {project.folder}/{project.clean} {project.folder}/{project.clean}.txt",
                "Without the file in the way the target runs.",
                f"mv {project.folder}/{project.clean}.txt {project.folder}/{project.clean}",
            ),
            slip(
                "hallucination",
                f"printf '\\n%s\\n' '.ALWAYS: {project.clean}' >> {project.file}",
                ".ALWAYS marks targets that run every time.",
                f"sed -i '$d' {project.file}",
            ),
            slip(
                "verification_failure", f"make -C {project.folder} -B {project.clean}", "With -B it runs, so it works."
            ),
        ),
    )


def _target(project: Project, place: Place) -> Step:
    rule = f"$(OUT)/{project.extra}: $(OUT)/{project.ordered}\\n\\t{project.extra_command}"
    built = f"{project.out}/{project.extra}"
    add = f"printf '\\n{rule}\\n' >> {project.file}"
    into_all = edit(project.file, f"'s#^all:.*#& $(OUT)/{project.extra}#'")
    return Step(
        says=(
            f"Add a target {built} to {project.path} that holds {project.extra_words} of {project.ordered}, rebuilt when that changes and built by a plain `make`.",
            f"Extend {project.path} by {built}: {project.extra_words} of {project.ordered}. A plain `make` has to build it, too, and again whenever {project.ordered} changes.",
            f"From {project.path} I also want {built} with {project.extra_words} of {project.ordered}; it must come with a plain `make` and follow changes.",
        ),
        thought="A rule at the end with the sorted text as its prerequisite, and one more name behind all.",
        command=f"{into_all} && {add}",
        mistakes=(
            slip(
                "requirement_violation",
                add,
                "With the rule in place the file can be built.",
                f"sed -i '/\\.{project.extra.rsplit('.', 1)[1]}: /,$d' {project.file}",
            ),
            slip(
                "command_error",
                f"{into_all.replace('-i', '-i.bak')} && printf '\\n{rule}\\n' | tr '\\t' ' ' >> {project.file}",
                "An indented line below the target is its recipe.",
                f"mv {project.file}.bak {project.file}",
            ),
            slip(
                "verification_failure",
                f"mkdir -p {project.folder}/{project.out} && touch {project.folder}/{built}",
                "make finds the file there.",
                f"rm -r {project.folder}/{project.out}",
            ),
        ),
    )


_JOBS = {"tabs": _tabs, "variable": _variable, "prerequisites": _prerequisites, "phony": _phony, "target": _target}
