"""Mistakes that can be made with any command: one kind for each error type, found by the command's form.

Invariants:
- A slip is a function of the command alone, and never the command itself.
- Only what stands before the first quote or operator is touched, or a redirection or pipe at the end: no text inside
  quotes, no here-document, no compound command is changed.
- After its repair the right command can be run. Whether a slip shows is for the sandbox to decide.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from generators.messages import ErrorType, Mistake

_CD = re.compile(r"cd\s+[^\s'\"|;&<>]+\s*&&\s*")
_HEAD = re.compile(r"[^'\"|;&<>$`(){}\n\\]*")
_WORD = re.compile(r"[a-z][a-z0-9_.-]*(?=\s|$)")
_PATH = re.compile(r"(?<=\s)(?:/|\./)?[\w-]+(?:[/.][\w-]+)+")
_TARGET = re.compile(r">\s*([\w./-]+)\s*$")
_LAST_PIPE = re.compile(r"(?<!\|)\|(?!\||&)[^'\"|&;<>]*(?:>\s*[\w./-]+\s*)?$")
_KEYWORDS = frozenset(
    {
        "case", "cd", "do", "done", "elif", "else", "esac", "exec", "exit", "export", "fi", "for", "function", "if",
        "set", "then", "time", "until", "while",
    }
)  # fmt: skip
_TAKES_ANYTHING = frozenset({"echo", "printf", "test", "true"})
"""Programs that would refuse no option."""
_INVENTED = ("--smart", "--all-fields", "--in-order", "--tidy")


def slips(command: str) -> tuple[Mistake, ...]:
    """All slips of this command."""
    rng = random.Random(command)
    made = (*_wrong_path(command, rng), *_misspelt(command, rng), *_invented_option(command, rng))
    return (*made, *_other_target(command, rng), *_unfinished(command, rng))


def _wrong_path(command: str, rng: random.Random) -> Iterator[Mistake]:
    head = _HEAD.match(command)
    found = _PATH.search(head[0]) if head else None
    if found:
        folder, slash, name = found[0].rpartition("/")
        stem, dot, ending = name.partition(".")
        wrong = stem[:-1] if len(stem) > 3 else f"{stem}s"
        text = f"{command[: found.start()]}{folder}{slash}{wrong}{dot}{ending}{command[found.end() :]}"
        yield _mistake(
            "analysis_error",
            text,
            rng.choice(
                (
                    f"What I need is in {folder}{slash}{wrong}{dot}{ending}, as I understand the request.",
                    f"The request is about {wrong}{dot}{ending}, so that is where I work.",
                )
            ),
        )


def _misspelt(command: str, rng: random.Random) -> Iterator[Mistake]:
    word = _program(command)
    if word and len(word[0]) > 1 and word[0][-1] != word[0][-2]:
        wrong = f"{word[0][:-2]}{word[0][-1]}{word[0][-2]}"
        text = f"{command[: word.start()]}{wrong}{command[word.end() :]}"
        reasons = ("I know the command by heart.", "One command does this, I type it straight away.")
        yield _mistake("command_error", text, rng.choice(reasons))


def _invented_option(command: str, rng: random.Random) -> Iterator[Mistake]:
    word = _program(command)
    if word and word[0] not in _TAKES_ANYTHING:
        option = rng.choice(_INVENTED)
        text = f"{command[: word.end()]} {option}{command[word.end() :]}"
        yield _mistake("hallucination", text, f"{word[0]} has {option} for exactly this, so I can let it do the work.")


def _other_target(command: str, rng: random.Random) -> Iterator[Mistake]:
    found = _TARGET.search(command)
    if found and "\n" not in command and not found[1].startswith("/dev/"):
        stem, dot, _ = found[1].rpartition(".")
        wrong = f"{stem}{dot}out" if dot and not found[1].endswith(".out") else f"{found[1]}-result"
        reasons = (f"The result goes into {wrong}.", f"I keep the result in {wrong}, that name says what it is.")
        yield _mistake(
            "requirement_violation", f"{command[: found.start(1)]}{wrong}", rng.choice(reasons), f"rm -f {wrong}"
        )


def _unfinished(command: str, rng: random.Random) -> Iterator[Mistake]:
    found = _LAST_PIPE.search(command)
    first = command[: found.start()] if found and "\n" not in command else ""
    if first and first.count("'") % 2 == 0 and "&&" not in _CD.sub("", first, count=1):
        reasons = (
            "The first part decides; what comes out needs no second look.",
            "This shows what I need, the rest is a matter of form and I trust it.",
        )
        yield _mistake("verification_failure", first.rstrip(), rng.choice(reasons))


def _program(command: str) -> re.Match[str] | None:
    """The name of the first program, behind a change of directory."""
    enter = _CD.match(command)
    word = _WORD.match(command, enter.end() if enter else 0)
    return word if word and word[0] not in _KEYWORDS else None


def _mistake(error_type: ErrorType, command: str, reason: str, *repair: str) -> Mistake:
    return Mistake(error_type=error_type, command=command, step=0, reason=reason, repair=repair)
