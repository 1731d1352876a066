"""What the scripted server says: replies, faults and rules, as code or as a TOML file.

A script is one of
- a callable `(request, number) -> Reply | Fault`: `request` is the JSON body, `number` counts calls from 1;
- a sequence of replies and faults, consumed in order (a call beyond its end is answered 400);
- `Rules`: the first rule whose pattern is found in the rendered prompt answers, its own list in turn and its last entry
  for ever after.

A rules file holds `[[rules]]` tables with `match` and `say`, a list of tables with the fields of `Reply` or `Fault`:

    [[rules]]
    match = "list the files"
    say = [{ text = "<command>ls</command>" }, { status = 429, retry_after = "1" }]
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.errors import UserError


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    delay_s: float = Field(default=0.0, ge=0)
    """Before anything is sent, beside the server's own latency."""


class Reply(_Said):
    """One answer with status 200."""

    text: str = ""
    reasoning: str = ""
    """Sent as `reasoning_content`."""
    finish: Literal["stop", "length", "content_filter", "tool_calls", "abort"] = "stop"
    tool: str = ""
    """Name of a function: the answer is then a call of it."""
    arguments: str = ""
    """The call's arguments, JSON as text."""
    prompt_tokens: int | None = None
    """None: a quarter of the prompt's length."""
    completion_tokens: int | None = None
    usage: bool = True
    """False leaves usage out of the reply."""


class Fault(_Said):
    """One call that fails: by status, by silence (`stall`) or by a connection cut in mid-body (`cut`)."""

    status: int | None = None
    kind: Literal["status", "stall", "cut"] = "status"
    retry_after: str = ""
    """Value of the header: seconds or an HTTP date."""
    code: str = ""
    message: str = "scripted fault"


Said = Reply | Fault
"""What one call is answered with."""

Respond = Callable[[dict[str, Any], int], Said]


class Rule(BaseModel):
    """Answers for the prompts in which `match`, a regular expression, is found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str
    say: tuple[Reply | Fault, ...] = Field(min_length=1)


class Rules(BaseModel):
    """Rules in the order in which they are tried; `otherwise` answers what none matches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[Rule, ...] = ()
    otherwise: Reply | Fault = Fault(status=400, message="no rule matches this prompt")


class LogNormal(BaseModel):
    """A latency distribution with this median: `median_s * exp(sigma * N(0, 1))`.

    Each call draws its own, by name: the same call takes as long in any order, on any machine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    median_s: float = Field(gt=0)
    sigma: float = Field(default=0.5, ge=0)
    seed: int = 0

    def of(self, call: str) -> float:
        """Seconds that `call` takes."""
        return self.median_s * math.exp(self.sigma * random.Random(f"{self.seed}/{call}").gauss(0.0, 1.0))

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)


Script = Respond | Sequence[Said] | Rules


def rendered_prompt(request: Mapping[str, Any]) -> str:
    """The conversation as one text: `role: content`, one message after another."""
    return "\n".join(f"{m.get('role')}: {m.get('content')}" for m in request.get("messages", []))


def responder(script: Script) -> Respond:
    """The script as a callable."""
    if isinstance(script, Rules):
        return _follow_rules(script)
    if callable(script):
        return script
    return _follow_list(script)


def _follow_list(said: Sequence[Said]) -> Respond:
    def respond(_request: dict[str, Any], number: int) -> Said:
        if number > len(said):
            return Fault(status=400, message=f"the script has no reply for call {number}")
        return said[number - 1]

    return respond


def _follow_rules(rules: Rules) -> Respond:
    patterns = [re.compile(rule.match) for rule in rules.rules]
    used = [0] * len(patterns)

    def respond(request: dict[str, Any], _number: int) -> Said:
        prompt = rendered_prompt(request)
        for index, pattern in enumerate(patterns):
            if pattern.search(prompt):
                say = rules.rules[index].say
                used[index] += 1
                return say[min(used[index], len(say)) - 1]
        return rules.otherwise

    return respond


def load_rules(path: Path) -> Rules:
    """Read a rules file. Raises: UserError."""
    try:
        return Rules.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as exc:
        raise UserError(str(path), f"not a rules file: {exc}", "See runtime/chat/script.py for the format") from exc
