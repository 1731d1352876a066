"""Whether a mistake left a trace: the state around a command, as two hashes, and what changed.

Invariants:
- Taking a fingerprint changes nothing that a later command could notice: `$?` is put back, files are only read.
- The clock is no state: times of files and the shell's own counters do not count, so rewriting the same content is no
  change.
- A command without effect can be left out of the record: directory, variables, functions, options and jobs of the
  shell are part of the fingerprint.

Files are looked at where an agent works: its home, the directory its session starts in, and /tmp.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Self

from sandbox.engine import Sandbox, Session
from sandbox.spec import AGENT_HOME, CommandResult

Effect = Literal["", "exit_code", "files", "shell", "output"]

_TIMEOUT_S = 30.0
_TMP = "/tmp"  # noqa: S108  (the sandbox's, not ours)
_FILES = r"""
for root do
  find "$root" -xdev \( -type f -printf '%p f %m %s\n' -o -printf '%p %y %m %l\n' \)
  find "$root" -xdev -type f -size -4096k -exec sha256sum {} +
done 2>/dev/null | LC_ALL=C sort | sha256sum
"""
"""Names, kinds, modes and sizes of everything, content of files up to 4 MiB."""
_RESTLESS = (
    "_|BASH_.*|BASHPID|COLUMNS|DIRSTACK|EPOCH.*|FUNCNAME|HISTCMD|LINENO|LINES|OLDPWD|OPTERR|PIPESTATUS|POSIXLY_CORRECT|PPID|"
    "RANDOM|SECONDS|SRANDOM"
)
"""Variables of the shell that change by themselves."""
_SHELL = (
    r"{ \builtin pwd; \builtin umask; "
    rf"\builtin declare -p | \command grep -Ev '^declare -[a-zA-Z-]+ ({_RESTLESS})(=|$)'; "
    r"\builtin declare -f; \builtin alias; \builtin shopt -p; \builtin trap; \builtin jobs -p; } 2>&1 "
    r"| \command sha256sum; (\builtin exit %d)"
)


@dataclass(frozen=True)
class Fingerprint:
    """The state between two commands."""

    files: str
    shell: str


class Probe:
    """Takes fingerprints of one session's surroundings."""

    def __init__(self, sandbox: Sandbox, session: Session, roots: Collection[str]) -> None:
        self._sandbox, self._session, self._roots = sandbox, session, roots

    @classmethod
    async def attach(cls, sandbox: Sandbox, session: Session) -> Self:
        """For a session that has just been opened."""
        started = (await session.run("pwd", timeout_s=_TIMEOUT_S)).output.strip()
        apart = started not in ("", "/") and not f"{started}/".startswith(f"{AGENT_HOME}/")
        return cls(sandbox, session, sorted({AGENT_HOME, _TMP, *([started] if apart else [])}))

    async def take(self, exit_code: int | None) -> Fingerprint:
        """`exit_code`: of the last command, which the next one may ask for."""
        shell = await self._session.run(_SHELL % (exit_code or 0), timeout_s=_TIMEOUT_S)
        files = await self._sandbox.exec(["/bin/sh", "-c", _FILES, "sh", *self._roots], timeout_s=_TIMEOUT_S)
        return Fingerprint(files=files.stdout.decode(errors="replace"), shell=shell.output)


def effect_of(before: Fingerprint, after: Fingerprint, result: CommandResult, seen: Collection[str]) -> Effect:
    """The strongest trace of a command; empty for none. `seen`: what earlier commands printed."""
    if result.exit_code != 0:
        return "exit_code"
    if before.files != after.files:
        return "files"
    if before.shell != after.shell:
        return "shell"
    return "output" if result.output.strip() and result.output not in seen else ""
