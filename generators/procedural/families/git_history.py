"""Reports from a repository's past: who, when, which lines, between which releases."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from generators.procedural import repository, words
from generators.procedural.checks import check
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.repository import Commit
from generators.procedural.steps import Step, assemble

name = "git-history"
category = "version control"
tools: tuple[str, ...] = ("git", "sort", "uniq", "sed", "head")
depths = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class History:
    """A drawn history and what is remarkable in it."""

    repo: str
    commits: tuple[Commit, ...]
    paths: tuple[str, ...]
    word: str
    """Added to `paths[0]` by `commits[added]`, taken out again by `commits[removed]`."""
    added: int
    removed: int
    tags: tuple[int, int]
    """`v1.0` and `v1.1`, as indexes of commits."""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    history = _history(rng)
    while not _blameable(history):
        history = _history(rng)
    jobs = rng.sample((_authors, _month, _blame, _busiest, _introduced, _between), depth)
    repo = f"{place.directory}/{history.repo}"
    return assemble(
        family=name,
        title=f"History of {history.repo}",
        place=place,
        openings=(
            f"The git repository {repo} (branch main) has a history that I need a few facts from. Leave the repository itself alone.",
            f"I'm preparing a review of the project in {repo}; all of it is on branch main. Please look things up for me in its git history.",
            f"Could you dig through the git log of {repo} (branch main)?",
        ),
        steps=[job(rng, history, place) for job in jobs],
        files=(),
        setup=(_setup(history),),
        initial_checks=(
            check(
                repo,
                "history",
                f"assert run('git', 'rev-list', '--count', 'main', cwd=path).strip() == '{len(history.commits)}'",
            ),
        ),
    )


def _history(rng: random.Random) -> History:
    people = [
        f"{first.title()} {last.title()}"
        for first, last in zip(
            words.distinct(rng, words.PEOPLE, 4), words.distinct(rng, words.SURNAMES, 4), strict=True
        )
    ]
    paths = tuple(
        f"{folder}/{file}"
        for folder, file in zip(
            ("docs", "docs", "plans", "src"), words.file_names(rng, 4, (".md", ".txt")), strict=True
        )
    )
    subjects, clock = repository.subjects(rng), repository.clock(rng)
    total = rng.randint(12, 16)
    added, removed = 2, rng.randint(5, total - 3)
    word = rng.choice(words.PROJECTS)
    content: dict[str, list[str]] = {path: [] for path in paths}
    commits = []
    for index in range(total):
        path = paths[index] if index < 4 and index != added else rng.choices(paths, (6, 4, 2, 1))[0]
        if index in (added, removed):
            path = paths[0]
        lines = content[path]
        if index == added:
            lines.append(f"codename {word}")
        elif index == removed:
            lines[lines.index(f"codename {word}")] = f"codename to be decided {words.token(rng, 4)}"
        elif len(lines) > 3 and rng.random() < 0.3 and lines[0] != f"codename {word}":
            lines[0] = f"{words.phrase(rng)} {words.token(rng, 4)}"
        else:
            lines.extend(f"{words.phrase(rng)} {words.token(rng, 4)}" for _ in range(rng.randint(1, 3)))
        author = rng.choices(people, (5, 3, 2, 1))[0]
        commits.append(Commit(author=author, when=next(clock), subject=next(subjects), files={path: tuple(lines)}))
    first = rng.randint(3, 5)
    return History(
        repo=rng.choice(words.PROJECTS) + "-" + rng.choice(("docs", "site", "tool", "kit", "handbook")),
        commits=tuple(commits),
        paths=paths,
        word=word,
        added=added,
        removed=removed,
        tags=(first, first + rng.randint(4, 6)),
    )


def _setup(history: History) -> str:
    commands = [*repository.start(history.repo, "Release Desk")]
    for index, commit in enumerate(history.commits):
        commands += repository.save(commit)
        if index in history.tags:
            commands.append(f"git tag v1.{history.tags.index(index)}")
    return f"({' && '.join(commands)})"


def _authors(rng: random.Random, history: History, place: Place) -> Step:
    counts = Counter(commit.author for commit in history.commits)
    lines = [f"{count} {person}" for person, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    target = f"{place.directory}/authors.txt"
    log = f"git -C {history.repo} log main --format=%an | sort | uniq -c"
    return report(
        place,
        "authors.txt",
        lines,
        log + " | sort -k1,1nr -k2 | sed 's/^ *//'",
        says=(
            f"Write {target}: one line for each author on main, the number of commits, one blank, the author's name; most commits first, equal counts in alphabetical order of the name.",
            f"Count the commits of each author on main and put the counts into {target}, lines like `7 Jane Doe`, the biggest number on top; people with the same number go in alphabetical order of their names.",
            f"Who committed how much on main? I'd like {target} to hold lines of the form `<commits> <author name>`, sorted by commits from high to low and, where they are equal, by name from A to Z.",
        ),
        thought="I count author names with uniq and sort by count, then by name.",
        slips=(
            (
                "requirement_violation",
                log + " | sort -k1,1n -k2 | sed 's/^ *//'",
                "A numeric sort by the first column puts them in order.",
            ),
            (
                "hallucination",
                f"git -C {history.repo} shortlog --counts-only main",
                "git shortlog can print just the counts.",
            ),
        ),
    )


def _month(rng: random.Random, history: History, place: Place) -> Step:
    months = Counter(commit.when.strftime("%Y-%m") for commit in history.commits)
    month = max(sorted(months), key=lambda key: months[key])
    year, number = (int(part) for part in month.split("-"))
    after = f"{year + number // 12}-{number % 12 + 1:02d}"
    lines = [commit.subject for commit in history.commits if commit.when.strftime("%Y-%m") == month]
    file = f"commits-{month}.txt"
    target = f"{place.directory}/{file}"
    log = f"TZ=UTC git -C {history.repo} log main"
    window = f"--since={month}-01T00:00:00Z --until={after}-01T00:00:00Z --format=%s"
    return report(
        place,
        file,
        lines,
        f"{log} --reverse {window}",
        says=(
            f"List the subjects of all commits on main dated in {month} (UTC), one per line, oldest first, in {target}.",
            f"Take the commits of the month {month} (dates in UTC) on main and save just their subject lines to {target}, from the oldest to the newest.",
            f"What went into main during {month}, by UTC date? Give me only the subject lines, in the order in which they were made, in {target}.",
        ),
        thought="The log limited to that month, reversed so that the oldest comes first.",
        slips=(
            ("requirement_violation", f"{log} {window}", "git log with --since and --until gives the month."),
            (
                "analysis_error",
                f"{log} --reverse --since={after}-01T00:00:00Z --format=%s",
                "Everything since the end of that month should be what is meant.",
            ),
        ),
    )


def _blame(rng: random.Random, history: History, place: Place) -> Step:
    path, number, author = rng.choice(_blameable(history))
    target = f"{place.directory}/line-author.txt"
    git = f"git -C {history.repo}"
    return report(
        place,
        "line-author.txt",
        [author],
        f"{git} blame -L {number},{number} --porcelain main -- {path} | sed -n 's/^author //p'",
        says=(
            f"Write the name of the author who last changed line {number} of {path} on main to {target}, the name alone.",
            f"Find out who is behind line {number} of {path} as it stands on main, and put that author's name, nothing else, into {target}.",
            f"Somebody wrote line {number} of {path} (as it is on main now): save the name, only the name, in {target}.",
        ),
        thought="Blame for exactly that line, in porcelain form, has the author on a line of its own.",
        slips=(
            (
                "analysis_error",
                f"{git} log -1 --format=%an main -- {path}",
                f"Whoever touched {path} last will have written that line.",
            ),
            (
                "command_error",
                f"{git} blame -L {number} main {path} | cut -d' ' -f2",
                "The second column of blame is the author.",
            ),
        ),
    )


def _blameable(history: History) -> list[tuple[str, int, str]]:
    """Path, number and author of the lines whose author is not the last one of their file."""
    owners: dict[str, dict[str, str]] = {}
    final: dict[str, Commit] = {}
    for commit in history.commits:
        for path, lines in commit.files.items():
            known = owners.get(path, {})
            owners[path] = {line: known.get(line, commit.author) for line in lines}
            final[path] = commit
    return [
        (path, number, owners[path][line])
        for path, last in final.items()
        for number, line in enumerate(last.files[path], 1)
        if owners[path][line] != last.author
    ]


def _busiest(rng: random.Random, history: History, place: Place) -> Step:
    counts = Counter(path for commit in history.commits for path in commit.files)
    lines = [f"{path} {count}" for path, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][:3]
    target = f"{place.directory}/busiest.txt"
    log = f"git -C {history.repo} log main --name-only --format="
    count = "sort | uniq -c | sort -k1,1nr -k2"
    turn = "awk '{print $2, $1}'"
    return report(
        place,
        "busiest.txt",
        lines,
        f"{log} | {count} | head -3 | {turn}",
        says=(
            f"Put the three files that were touched by the most commits on main into {target}: path as git shows it, one blank, number of commits; most first, equal numbers in alphabetical order of the path.",
            f"Which three paths changed in most commits on main? Save them to {target} as `<path> <commits>`, highest number on top, ties in alphabetical order of the path.",
            f"In {target} I need the top three of the files by the number of commits on main that changed them, lines like `docs/a.md 5`, descending, ties by path from A to Z.",
        ),
        thought="Names of the changed files of each commit, counted; the first three, path first.",
        slips=(
            (
                "requirement_violation",
                f"{log} | {count} | head -3 | sed 's/^ *//'",
                "uniq -c already prints both columns.",
            ),
            (
                "analysis_error",
                f"git -C {history.repo} ls-files | xargs -I{{}} wc -l {history.repo}/{{}} | sort -nr | head -3 | {turn}",
                "The longest files will be the ones that changed most.",
            ),
        ),
    )


def _introduced(rng: random.Random, history: History, place: Place) -> Step:
    path, word = history.paths[0], history.word
    target = f"{place.directory}/introduced.txt"
    search = f"git -C {history.repo} log main"
    return report(
        place,
        "introduced.txt",
        [history.commits[history.added].subject],
        f"{search} --reverse --format=%s -S'codename {word}' -- {path} | head -1",
        says=(
            f"The text `codename {word}` was once in {path} and is gone by now: write the subject of the commit on main that introduced it to {target}.",
            f"At some point `codename {word}` stood in {path}, later it was taken out. Save the subject line of the commit on main that brought it in to {target}.",
            f"I remember `codename {word}` in {path}, though it isn't there any more. The subject of the commit on main that first added it should go to {target}.",
        ),
        thought="The pickaxe finds commits that change the number of occurrences; the oldest of them added it.",
        slips=(
            (
                "analysis_error",
                f"{search} -1 --format=%s -S'codename {word}' -- {path}",
                "The pickaxe search gives the commit, one result is enough.",
            ),
            (
                "command_error",
                f"{search} --format=%s --grep='codename {word}' -- {path}",
                "Searching the log for the text finds the commit.",
            ),
        ),
    )


def _between(rng: random.Random, history: History, place: Place) -> Step:
    low, high = history.tags
    lines = [commit.subject for commit in history.commits[high:low:-1]]
    target = f"{place.directory}/release-notes.txt"
    log = f"git -C {history.repo} log --format=%s"
    return report(
        place,
        "release-notes.txt",
        lines,
        f"{log} v1.0..v1.1",
        says=(
            f"Save the subjects of the commits that came after tag v1.0, up to and including tag v1.1, one per line and newest first, to {target}.",
            f"For the release notes, collect what v1.1 has beyond v1.0: subject lines only, the newest at the top, in {target}.",
            f"What is new in tag v1.1 compared with tag v1.0? The subject lines, newest first, belong in {target}.",
        ),
        thought="The range v1.0..v1.1 is exactly that, and the log's own order is newest first.",
        slips=(
            ("analysis_error", f"{log} v1.1", "The log of the tag v1.1 is what the release contains."),
            (
                "requirement_violation",
                f"{log} --reverse v1.0..v1.1",
                "Release notes read best from the oldest change to the newest.",
            ),
        ),
    )
