"""Git repositories written down in Python: a list of commits, and the one shell line that replays it with fixed dates.

Equal commits give equal object names on every machine: author, committer, dates and contents are all given.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from generators.procedural import words

_COMMIT = (
    'save() { git add -A && GIT_AUTHOR_NAME="$1" GIT_AUTHOR_EMAIL="$2" GIT_AUTHOR_DATE="$3" '
    'GIT_COMMITTER_NAME="$1" GIT_COMMITTER_EMAIL="$2" GIT_COMMITTER_DATE="$3" git commit -q -m "$4"; }'
)
_VERBS = (
    "Add",
    "Correct",
    "Describe",
    "Extend",
    "Fix",
    "Move",
    "Rename",
    "Reword",
    "Shorten",
    "Simplify",
    "Split",
    "Update",
)


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit; `files` maps relative paths to their lines from then on."""

    author: str
    when: datetime
    subject: str
    files: Mapping[str, Sequence[str]]


def start(name: str, owner: str) -> tuple[str, ...]:
    """Shell commands that make an empty repository with `owner` configured, and go into it."""
    return (
        f"git init -q -b main {name}",
        f"cd {name}",
        f"git config user.name {shlex.quote(owner)}",
        f"git config user.email {email(owner)}",
        _COMMIT,
    )


def save(commit: Commit) -> tuple[str, ...]:
    """Shell commands that make this commit on the current branch, after `start`."""
    folders = sorted({path.rsplit("/", 1)[0] for path in commit.files if "/" in path})
    arguments = (commit.author, email(commit.author), commit.when.strftime("%Y-%m-%dT%H:%M:%S+0000"), commit.subject)
    return (
        *(f"mkdir -p {folder}" for folder in folders),
        *(write(path, lines) for path, lines in commit.files.items()),
        "save " + " ".join(shlex.quote(argument) for argument in arguments),
    )


def write(path: str, lines: Sequence[str]) -> str:
    """A shell command that gives a file these lines."""
    return f"printf '%s\\n' {' '.join(shlex.quote(line) for line in lines)} > {path}"


def email(person: str) -> str:
    """`ada.brandt@example.org`."""
    return person.lower().replace(" ", ".") + "@example.org"


def subjects(rng: random.Random) -> Iterator[str]:
    """Endless different commit subjects."""
    seen: set[str] = set()
    while True:
        subject = f"{rng.choice(_VERBS)} {rng.choice(words.TERMS)} {rng.choice(words.STEMS)}"
        if subject not in seen:
            seen.add(subject)
            yield subject


def clock(rng: random.Random) -> Iterator[datetime]:
    """Endless moments, each one to nine days and some hours after the last."""
    now = words.moment(rng)
    while True:
        now += timedelta(days=rng.randint(1, 9), minutes=rng.randint(1, 700))
        yield now
