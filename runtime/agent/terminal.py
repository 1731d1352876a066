"""A terminal inside a sandbox: keystrokes in, what was printed since the last look out.

An interactive bash on a pseudo-terminal of 160 x 40, kept by util-linux's `script`, beside the session's own shell.
Keys reach it through a FIFO, as data and never as shell text; all that it prints is appended to a file.

Invariants:
- What was printed is told once, in order. Control sequences are taken out, `\\r` and backspace are carried out in their
  line. There is no screen of cells, and TERM is `dumb`: full-screen programs know that, and can be left with a key.
- A shell that is left by `exit` or end-of-file is followed by a new one.
- A terminal that the agent itself destroyed is told to the agent; it is no fault of the sandbox.
"""

from __future__ import annotations

import re
import shlex

from msgspec.structs import replace

from sandbox.engine import Session
from sandbox.errors import EngineFault
from sandbox.spec import CommandResult

_INSIDE = "stty rows 40 cols 160; while :; do bash -i; done"
# `set -m`: a background process would otherwise ignore the interrupt key, and all its children with it.
_START = f"""(
command -v script >/dev/null || exit 127
place=$(mktemp -d) && mkfifo -m 600 "$place/keys" || exit 1
set -m
TERM=dumb script -qfc {shlex.quote(_INSIDE)} "$place/screen" <>"$place/keys" >/dev/null 2>&1 &
until [ "$(tail -n +2 "$place/screen" 2>/dev/null | head -c 1)" ]; do sleep 0.02; done
printf '%s %s' "$place" "$(head -n 1 "$place/screen" | wc -c)"
)"""
_START_TIMEOUT_S = 20.0
_TYPE = "timeout 5 sh -c 'exec cat >\"$1\"' - {keys} && sleep {wait_s:.3f}"
_LOOK = "tail -c +{start} {screen}"
_GRACE_S = 20.0
"""A session's command gets this much longer than it should take."""
_GONE = "[the terminal does not take keys any more]\n"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]")


class Terminal:
    """One terminal, made by `open`."""

    def __init__(self, session: Session, place: str, seen_bytes: int) -> None:
        self._session, self._seen, self._gone = session, seen_bytes, False
        self._keys, self._screen = shlex.quote(f"{place}/keys"), shlex.quote(f"{place}/screen")

    @classmethod
    async def open(cls, session: Session) -> Terminal:
        """Start it and wait for its prompt. Raises: SandboxLost; EngineFault when the sandbox cannot have one."""
        result = await session.run(_START, timeout_s=_START_TIMEOUT_S)
        place, _, header = result.output.rpartition(" ")
        if result.exit_code != 0 or not place:
            why = "the image has no program `script` (util-linux)" if result.exit_code == 127 else result.output[-200:]
            raise EngineFault("terminal", "start", why or "no prompt came")
        return cls(session, place, int(header))

    async def type(self, keys: bytes, *, wait_s: float) -> float:
        """Send keys and wait; returns the seconds that it took. Raises: SandboxLost, EngineFault."""
        sent = await self._session.run(
            _TYPE.format(keys=self._keys, wait_s=wait_s), timeout_s=wait_s + _GRACE_S, stdin=keys
        )
        self._gone = self._gone or sent.exit_code != 0
        return sent.duration_s

    async def look(self) -> CommandResult:
        """What was printed since the last look, as a person would read it. Raises: SandboxLost, EngineFault."""
        result = await self._session.run(_LOOK.format(start=self._seen + 1, screen=self._screen), timeout_s=_GRACE_S)
        if result.exit_code != 0:
            return replace(result, output=_GONE, exit_code=None)
        self._seen += result.total_bytes
        return replace(result, output=as_read(result.output) + (_GONE if self._gone else ""), exit_code=None)


def as_read(printed: str) -> str:
    """Printed text without control sequences, each line as it stood in the end."""
    plain = _ESCAPE.sub("", printed).replace("\r\n", "\n")
    return "\n".join(_line(line) for line in plain.split("\n"))


def _line(line: str) -> str:
    if "\r" not in line and "\b" not in line:
        return _CONTROL.sub("", line)
    cells: list[str] = []
    at = 0
    for character in line:
        if character == "\r":
            at = 0
        elif character == "\b":
            at = max(0, at - 1)
        else:
            cells[at : at + 1] = [character]
            at += 1
    return _CONTROL.sub("", "".join(cells))
