"""A script that misbehaves as endpoints do: some calls fail, some answers come in a shape nobody asked for.

    ScriptedServer(Unruly(script, share=0.2, seed=7))

Faults (`limited`, `limited_told`, `broken`, `unavailable`, `stall`, `cut`) are no answer and cost nothing; distortions
are paid answers: `empty`, `reasoning` alone, `truncated` at the cap, `prose` around what was asked for, another
`schema`, a `tool` call. `counts` says how often each happened.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime.chat.script import Fault, Reply, Said, Script, responder

FAULTS: Mapping[str, Fault] = {
    "limited": Fault(status=429),
    "limited_told": Fault(status=429, retry_after="0.2"),
    "broken": Fault(status=500),
    "unavailable": Fault(status=503),
    "stall": Fault(kind="stall"),
    "cut": Fault(kind="cut"),
}
_COMMAND = re.compile(r"<command>(.*)</command>", re.DOTALL)


def _tool_call(text: str) -> Reply:
    """JSON becomes the arguments of a call; a command those of a shell; anything else a call that says nothing."""
    if command := _COMMAND.search(text):
        return Reply(finish="tool_calls", tool="bash", arguments=json.dumps({"command": command[1]}))
    arguments = text if text.lstrip().startswith("{") else json.dumps({"note": text})
    return Reply(finish="tool_calls", tool="answer", arguments=arguments)


DISTORTIONS: Mapping[str, Callable[[str], Reply]] = {
    "empty": lambda _: Reply(),
    "reasoning": lambda text: Reply(reasoning=text),
    "truncated": lambda text: Reply(text=text[: len(text) // 2], finish="length"),
    "prose": lambda text: Reply(text=f"Sure {{as asked}}:\n\n{text}\n\nTell me if anything [or all] is to be changed."),
    "schema": lambda _: Reply(text=json.dumps({"answer": "42"})),
    "tool": _tool_call,
}
KINDS = (*FAULTS, *DISTORTIONS)


class Unruly:
    """Wraps a script: a call misbehaves with probability `share`, in one of `kinds`, all equally likely.

    What happens to a call is a function of seed and call number.
    """

    def __init__(self, script: Script, *, share: float, seed: int = 0, kinds: Sequence[str] = KINDS) -> None:
        self.counts: Counter[str] = Counter()
        self._respond, self._share, self._seed, self._kinds = responder(script), share, seed, tuple(kinds)

    def __call__(self, request: dict[str, Any], number: int) -> Said:
        rng = random.Random(f"{self._seed}/{number}")
        if rng.random() >= self._share:
            return self._respond(request, number)
        kind = rng.choice(self._kinds)
        self.counts[kind] += 1
        return FAULTS[kind] if kind in FAULTS else self._distorted(kind, request, number)

    def _distorted(self, kind: str, request: dict[str, Any], number: int) -> Said:
        said = self._respond(request, number)
        return DISTORTIONS[kind](said.text) if isinstance(said, Reply) else said
