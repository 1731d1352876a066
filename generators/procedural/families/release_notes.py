"""A repository with version tags and typed commit subjects: the next version, notes, tags in order, who took part."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from generators.procedural import repository, words
from generators.procedural.answers import Answers
from generators.procedural.checks import check
from generators.procedural.family import Piece, Place
from generators.procedural.repository import Commit
from generators.procedural.steps import Step, slip

name = "release-notes"
category = "version numbers and changelogs"
tools: tuple[str, ...] = ("awk", "git", "sed", "sort", "uniq")
depths = range(1, 6)

_KINDS = ("feat", "fix", "docs", "chore")


@dataclass(frozen=True)
class Scene:
    """Commits oldest first; `tags` maps a version to the number of commits it holds."""

    at: str
    repo: str
    commits: list[Commit]
    tags: dict[str, int]
    new: str

    @property
    def path(self) -> str:
        return f"{self.at}/{self.repo}"

    @property
    def last(self) -> str:
        return list(self.tags)[-1]

    @property
    def recent(self) -> list[Commit]:
        return self.commits[self.tags[self.last] :]

    @property
    def git(self) -> str:
        return f"git -C {self.repo}"


def _scene(rng: random.Random, place: Place) -> Scene:
    people, clock = [words.full_name(rng) for _ in range(4)], repository.clock(rng)
    major, minor = rng.randint(1, 4), rng.randint(7, 8)
    tags = {f"v{major}.{minor}.0": 3, f"v{major}.{minor + 1}.0": 5, f"v{major}.{minor + 1}.1": 8}
    tags |= {f"v{major}.10.0": 11, f"v{major}.10.{rng.randint(1, 9)}": 13}
    breaking = rng.random() < 0.5
    kinds = [
        "feat",
        "fix",
        "feat!",
        *rng.choices(_KINDS, k=10),
        "fix",
        "feat",
        "fix",
        "feat",
        "docs",
        *rng.choices(_KINDS, k=2),
    ]
    if breaking:
        kinds[15] = "fix!"
    topics = repository.subjects(rng)
    scopes = words.distinct(rng, words.SERVICES, 4)
    subjects = [
        f"{kind.rstrip('!')}({rng.choice(scopes)}){'!' if kind[-1] == '!' else ''}: {next(topics).lower()}"
        for kind in kinds
    ]
    authors = [*rng.choices(people, k=13), people[0], people[1], people[1], people[2], people[2], people[1], people[2]]
    commits = [
        Commit(
            author=who, when=next(clock), subject=subject, files={f"{rng.choice(words.AREAS)}.txt": [words.token(rng)]}
        )
        for who, subject in zip(authors, subjects, strict=False)
    ]
    new = f"{major + 1}.0.0" if breaking else f"{major}.11.0"
    return Scene(place.directory, rng.choice(words.PROJECTS), commits, tags, new)


def _next_version(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rule = "a `!` before the colon raises the major number, else a `feat` the minor number, else the patch number goes up; lower numbers become 0"
    program = '/^[a-z]+[^:]*!:/ {m = 1} /^feat/ {f = 1} END {split(substr(last, 2), v, "."); if (m) print v[1] + 1 ".0.0"; else if (f) print v[1] "." v[2] + 1 ".0"; else print v[1] "." v[2] "." v[3] + 1}'
    newest = f"last=$({scene.git} describe --tags --abbrev=0)"
    return answers.step(
        out,
        [scene.new],
        f'{newest}; {scene.git} log --format=%s "$last"..main | awk -v last="$last" \'{program}\'',
        says=(
            f"Write the next version number (MAJOR.MINOR.PATCH without v) of {scene.path} to {out}, judged by the commits on main since the highest tag: {rule}.",
            f"Which version comes next in {scene.path}? Look at the commits on main after the latest version tag: {rule}. Just the number like 1.2.3, without v, in {out}.",
            f"We are about to release {scene.path}, and {out} should contain nothing but the new version (1.2.3, no v). The rule for what is on main since the last release: {rule}.",
        ),
        thought="Only the commits after the last tag count; the strongest kind decides.",
        slips=(
            (
                "analysis_error",
                f'{newest}; {scene.git} log --format=%s "$last" | awk -v last="$last" \'{program.replace("m = 1", "f = 1") if scene.new.endswith(".0.0") else program}\'',
                "The log with its subjects tells what changed.",
            ),
            (
                "requirement_violation",
                f"{newest}; {scene.git} log --format=%s \"$last\"..main | awk -v last=\"$last\" '{program}' | sed 's/^/v/'",
                "Versions are written with a v here.",
            ),
        ),
    )


def _notes(answers: Answers, scene: Scene) -> Step:
    out, kind = answers.fresh(".md"), answers.rng.choice(("feat", "fix"))
    lines = [
        "- " + commit.subject.split("(")[1].replace(")!", "").replace(")", "")
        for commit in scene.recent
        if commit.subject.startswith(kind)
    ]
    edit = f"sed -nE 's/^{kind}\\(([^)]*)\\)!?: /- \\1: /p'"
    return answers.step(
        out,
        lines,
        f"{scene.git} log --reverse --format=%s {scene.last}..main | {edit}",
        says=(
            f"Write {out}: a line `- SCOPE: TEXT` for each {kind} commit on main of {scene.path} since the tag {scene.last}, oldest first; subjects look like `{kind}(SCOPE): TEXT`, breaking ones (`{kind}(SCOPE)!: TEXT`) included.",
            f"Collect the {kind} commits of {scene.path} that came to main after {scene.last} in {out}, one line each, oldest on top: from `{kind}(SCOPE): TEXT`, or the same with `!`, make `- SCOPE: TEXT`.",
            f"For the notes of {scene.path} I need the {kind} commits after {scene.last}, oldest first, in {out}; `{kind}(SCOPE): TEXT` becomes `- SCOPE: TEXT`, and so does `{kind}(SCOPE)!: TEXT`.",
        ),
        thought="Log from the tag on in reverse, and sed keeps one kind and reshapes it.",
        slips=(
            (
                "requirement_violation",
                f"{scene.git} log --format=%s {scene.last}..main | {edit}",
                "The log has the commits in order.",
            ),
            (
                "analysis_error",
                f"{scene.git} log --reverse --format=%s main | {edit}",
                "All commits of that kind belong in the notes.",
            ),
        ),
    )


def _tags(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    return answers.step(
        out,
        list(reversed(scene.tags)),
        f"{scene.git} tag --sort=-version:refname",
        says=(
            f"Write all version tags of {scene.path} to {out}, one per line, highest version first (v1.10.0 is higher than v1.9.0).",
            f"List the tags of {scene.path} in {out}, the newest version on top, one a line; compare them as versions, so 1.10 comes after 1.9.",
            f"I'd like the versions tagged in {scene.path}, highest first, one tag a line, in {out}. Ten is more than nine, please.",
        ),
        thought="git can sort tags as versions.",
        slips=(
            ("command_error", f"{scene.git} tag | sort -r", "Reverse order puts the highest on top."),
            ("requirement_violation", f"{scene.git} tag --sort=version:refname", "Sorted by version, as git does it."),
        ),
    )


def _people(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    counts = Counter(commit.author for commit in scene.recent)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    tail = "sort | uniq -c | sort -k1,1nr -k2 | sed -E 's/^ *([0-9]+) (.*)/\\2: \\1/'"
    return answers.step(
        out,
        [f"{who}: {count}" for who, count in ranked],
        f"{scene.git} log --format=%an {scene.last}..main | {tail}",
        says=(
            f"Write `NAME: COUNT` for every author of commits on main of {scene.path} since the tag {scene.last} to {out}, most commits first, ties by name.",
            f"Who worked on {scene.path} after {scene.last}, and with how many commits on main? `NAME: COUNT` in {out}, highest count on top, equal ones by name.",
            f"For the thanks I need everybody with commits in {scene.path} since {scene.last}: `NAME: COUNT`, busiest first, same count alphabetically, in {out}.",
        ),
        thought="Author names from the tag on, counted and sorted.",
        slips=(
            ("analysis_error", f"{scene.git} log --format=%an main | {tail}", "Everybody in the log took part."),
            (
                "command_error",
                f"{scene.git} log --format=%an {scene.last}..main | {tail.removeprefix('sort | ')}",
                "uniq -c counts the names.",
            ),
        ),
    )


def _tag_old(answers: Answers, scene: Scene) -> Step:
    commit = answers.rng.choice(scene.commits[14:-1])
    tag, message = f"rc-{answers.rng.choice(words.TERMS)}", f"Candidate {words.token(answers.rng, 4)}"
    find = f"$({scene.git} log --format=%H --fixed-strings --grep='{commit.subject}' main)"
    seen = f"{scene.git} show --stat {tag}"
    return Step(
        says=(
            f"In {scene.path} set the annotated tag {tag} with the message `{message}` on the commit `{commit.subject}`.",
            f"The commit `{commit.subject}` in {scene.path} should get an annotated tag {tag}, message `{message}`.",
            f"Please tag `{commit.subject}` in {scene.path} as {tag}; a real (annotated) tag with `{message}` as its message.",
        ),
        thought="I find the commit by its subject and tag it with a message.",
        command=f"{scene.git} tag -a -m '{message}' {tag} \"{find}\"",
        checks=(
            check(
                scene.path,
                "tag",
                f"found = run('git', 'for-each-ref', '--format=%(objecttype)|%(contents:subject)|%(*subject)', 'refs/tags/{tag}', cwd=path)",
                f"assert found.strip() == {f'tag|{message}|{commit.subject}'!r}, f'the tag is {{found!r}}'",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                f'{scene.git} tag {tag} "{find}"',
                "A tag is a name for a commit.",
                f"{scene.git} tag -d {tag}",
            ),
            slip(
                "analysis_error",
                f"{scene.git} tag -a -m '{message}' {tag}",
                "The tag goes on what is there now.",
                f"{scene.git} tag -d {tag}",
            ),
            slip(
                "hallucination",
                f"{scene.git} tag --subject='{commit.subject}' -m '{message}' {tag}",
                "git tag can look a commit up by its subject.",
            ),
            slip("verification_failure", f"{seen} || true", "Looking at the tag shows whether it is there."),
        ),
    )


_STEPS = (_next_version, _notes, _tags, _people, _tag_old)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Questions first, then perhaps a new tag."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    chosen = sorted(rng.sample(range(len(_STEPS)), depth))
    setup = list(repository.start(scene.repo, words.full_name(rng)))
    for number, commit in enumerate(scene.commits, 1):
        setup += repository.save(commit)
        setup += [f"git tag {tag}" for tag, count in scene.tags.items() if count == number]
    return answers.piece(
        family=name,
        title="Prepare a release",
        openings=(
            f"The git repository {scene.path} has version tags; the subjects of its commits begin with a kind and a scope.",
            f"I'm preparing a release of {scene.path}, a git repository with tags for the versions and subjects like `fix(scope): text`.",
            f"It's release time for {scene.path}. Versions are tagged there and commit subjects start with kind and scope.",
        ),
        steps=[_STEPS[index](answers, scene) for index in chosen],
        files=(),
        setup=tuple(setup),
        made=(f"{scene.repo}/.git/HEAD",),
    )
