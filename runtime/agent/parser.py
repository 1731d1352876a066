"""Reading an agent's answer: one command, or done, or malformed. Version 1.

    <think>why</think>
    <command>ls -la</command>            run this
    <action>done</action>                the task is finished

Invariants (a change of any is a new version, see `AgentSettings.parser_version`):
- Tags inside reasoning do not count. An answer whose last tag is not closed was cut: nothing of it is run.
- The LAST command wins. Endless Terminals' first models were trained with the first; its later ones with the last.
- Only `<action>done</action>`, or the command `done` (a syntax error in bash, hence never a real one), means done; no
  phrase in prose does.
- An answer that holds a command and a done runs the command: nothing that the agent still wanted to do is lost.
- A command wrapped whole in a code fence is what stands inside the fence. Line breaks around it are dropped, nothing
  else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtime.chat.parse import Span, split_reasoning, strip_fence

_TAGS = ("command", "action")

Problem = Literal["no_action", "not_closed", "empty", "nul_byte", "json"]


@dataclass(frozen=True)
class Command:
    """Run `command`."""

    command: str
    thought: str = ""


@dataclass(frozen=True)
class Done:
    """The agent says that the task is finished."""

    thought: str = ""


@dataclass(frozen=True)
class Malformed:
    """No action can be read."""

    problem: Problem
    thought: str = ""
    detail: str = ""
    """What exactly is wrong, where the answer is JSON (`json`)."""


Action = Command | Done | Malformed


def parse_action(text: str) -> Action:
    """Read one answer."""
    spans, reasoning = split_reasoning(text, _TAGS)
    thought = "\n".join(part for part in (reasoning, _prose(spans)) if part)
    actions = [span for span in spans if span.tag]
    if actions and not actions[-1].closed:
        return Malformed("not_closed", thought)
    commands = [_clean(span.content) for span in actions if span.tag == "command"]
    if commands and commands[-1] != "done":
        return _command(commands[-1], thought)
    if commands or any(span.content.strip().lower() == "done" for span in actions):
        return Done(thought)
    return Malformed("no_action", thought)


def _command(command: str, thought: str) -> Action:
    if not command.strip():
        return Malformed("empty", thought)
    return Malformed("nul_byte", thought) if "\0" in command else Command(command, thought)


def _clean(content: str) -> str:
    return strip_fence(content).strip("\r\n") if content.strip() != "done" else "done"


def _prose(spans: list[Span]) -> str:
    return "\n".join(text for span in spans if not span.tag and (text := span.content.strip()))


_CORRECTIONS: dict[Problem, str] = {
    "no_action": "Your answer holds no command.",
    "not_closed": "Your answer was cut, or its tag is not closed. Nothing was run.",
    "empty": "Your command is empty.",
    "nul_byte": "Your command holds a NUL byte. Nothing was run.",
}


def correction(problem: Problem, *, truncated_at: int | None = None) -> str:
    """What a malformed answer is answered with. `truncated_at` is the token limit, when the answer reached it."""
    limit = f" It reached the limit of {truncated_at} tokens: think less, write shorter." if truncated_at else ""
    return (
        f"{_CORRECTIONS[problem]}{limit} Answer with exactly one <command>...</command>, "
        "or with <action>done</action> when the task is finished."
    )
