r"""The bash text that drives a session's shell. Nothing but bash itself is needed in the sandbox, and no file.

A supervisor (`bash -c`) starts the shell and, when it ends, reports its true exit code. The shell is an interactive
bash without a terminal: only an interactive bash gives up a whole command list on an interrupt and keeps its state.
The session writes lines to its standard input; each command is two lines:

1. stamp (what time it is and which process was the last to start), the command as one quoted word, evaluated inside a
   sourced text so that bash behaves as in a script (`[1] 4711` is not printed, `exit` is silent), and the report;
2. the report again. It counts when an interrupt or an error made bash give up line 1; else its nonce is out of date.

Descriptors of the shell: 0 the lines, which commands never see; 58 the output stream and 59 the control stream, beside
1 and 2 which a command may redirect or close for good.

Invariants:
- A command is one `$'...'` word of printable ASCII: nothing in it is syntax, and it cannot unbalance a line.
- Each builtin is called as `\builtin NAME`: neither aliases nor functions of that name matter. A function called
  `builtin` is removed in the report, where assigning POSIXLY_CORRECT makes the special builtin `unset` win over any
  function. That one assignment also holds the exit code, since nothing else may come before it.
- Everything printed outside the begin and end marks is dropped by the reader, so that traces, verbose lines, prompts
  and DEBUG traps of the protocol's own commands are never output. Inside the marks only the command is traced.
- The end nonce is in no variable while the command runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandbox.shell_marks import mark

_UNSAFE = re.compile(rb"[^ !-&(-\[\]-~]")
_SHORT = {b"\n": b"\\n", b"\t": b"\\t", b"'": b"\\'", b"\\": b"\\\\"}

SUPERVISOR = r"""
trap : HUP INT TERM
builtin read -r nonce
"$BASH" --noprofile --norc --noediting -i +H +o history 58>&1 59>&2 2>&1
code=$?
builtin printf '\036%s\037' "$nonce"
builtin printf '\036%s exit %s\0' "$nonce" "$code" >&2
"""
"""Reads the session's nonce as its first line; the shell it starts reads the rest. Survives `kill 0` in a command."""

INTERRUPT_SIGNAL = "VTALRM"
_ON_INTERRUPT = r"((${#BASH_SOURCE[@]})) && \builtin trap - INT && \builtin kill -INT $$"
"""Runs when the foreground process has ended or between two builtins; the interrupt that it sends gives up the whole
command. Between commands (no source file) it does nothing: an interrupt there would tear a line of the protocol."""

LEAVING = b"\\builtin trap - EXIT; \\builtin exit\n"
"""The last line for a shell that waits for a command."""

_STAMP = (
    r"\builtin read -r -N 99 BASH_EXECUTION_STRING </proc/uptime || \builtin :; "
    r"""\builtin printf '\036%s begin %%s' "$BASH_EXECUTION_STRING" >&59; """
    r"\builtin read -r -N 99 BASH_EXECUTION_STRING </proc/loadavg || \builtin :; "
    r"""\builtin printf ' %%s\0' "$BASH_EXECUTION_STRING" >&59; """
)
_REPORT = (
    r"""{ POSIXLY_CORRECT="$?:$SHELLOPTS:$BASHOPTS:"; \unset -f builtin; """
    r"""\builtin printf '%s' >&58; """
    r"""\builtin printf '\036%s end %%s %%s\0' "${POSIXLY_CORRECT%%%%:*}" "$PWD" >&59; """
    r"""[[ $POSIXLY_CORRECT == *:inherit_errexit:* ]] || \builtin shopt -u inherit_errexit; """
    r"""[[ $POSIXLY_CORRECT == *:posix:* ]] || \unset POSIXLY_CORRECT; } >/dev/null 2>&1"""
)


def quoted(data: bytes) -> bytes:
    """`data` as one bash word of printable ASCII. NUL cannot be expressed."""
    return b"$'" + _UNSAFE.sub(_escaped, data) + b"'"


def _escaped(match: re.Match[bytes]) -> bytes:
    byte = match[0]
    return _SHORT.get(byte) or b"\\x%02x" % byte[0]


def supervisor_argv() -> list[str]:
    return ["bash", "--noprofile", "--norc", "-c", SUPERVISOR]


def setup_lines(nonce: str, directories: Sequence[str]) -> bytes:
    """First input of a new shell: the supervisor's line, then the settings and the first directory that can be entered.

    Answered by the record `hello`: status of entering a directory, process id, directory.
    """
    enter = b" || ".join(b"\\builtin cd -- " + quoted(_encode(path)) for path in directories) or b"\\builtin :"
    lines = (
        nonce.encode(),
        b"PS1= PS2=; \\unset PS0 PROMPT_COMMAND MAILCHECK TMOUT HISTFILE; \\builtin shopt -u checkwinsize; "
        b"\\builtin trap " + quoted(_ON_INTERRUPT.encode()) + b" " + INTERRUPT_SIGNAL.encode(),
        b"{ " + enter + b"; } >/dev/null 2>&1; "
        rb"""\builtin printf '\036%b hello %%s %%s %%s\0' "$?" "$$" "$PWD" >&59""" % nonce.encode(),
    )
    return b"\n".join(lines) + b"\n"


def command_lines(command: bytes, *, begin: str, end: str, status: int, stdin: bytes | None) -> bytes:
    """The input that runs `command`, which finds `status` in `$?`.

    Answered by the record `begin` (nonce `begin`: uptime, load average line) before it starts, and the record `end`
    (nonce `end`: exit code, directory) after it; marks with the same nonces enclose its output.
    """
    opening = rb"\builtin printf '%b' >&58; \builtin return %d" % (_printable(mark(begin)), status)
    text = rb"\builtin . /dev/fd/56 56<<<" + quoted(opening) + b" 2>/dev/null\n" + command
    report = (_REPORT % (_printable(mark(end)).decode(), end)).encode()
    source = b"/dev/null" if stdin is None else _process_printing(stdin)
    first = (
        b"{ " + (_STAMP % begin).encode() + b"} 2>/dev/null; BASH_EXECUTION_STRING=" + quoted(text) + b"; "
        rb"""\builtin . /dev/fd/57 57<<<'\builtin eval "$BASH_EXECUTION_STRING"' 0<""" + source + b"; " + report
    )
    return first + b"\n" + report + b"\n"


def _printable(data: bytes) -> bytes:
    """`data` as a format of bash's printf."""
    return b"".join(b"\\%03o" % byte if byte < 0x20 else bytes([byte]) for byte in data)


def _process_printing(data: bytes) -> bytes:
    """A process substitution that prints `data`, NUL bytes included."""
    octal = re.sub(rb"[^ -\[\]-~]", lambda match: b"\\0%03o" % match[0][0], data)
    return b" <({ \\builtin printf %b " + quoted(octal) + b"; } 2>/dev/null)"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


KILLER = r"""
mode=$1 shell=$2 since=$3 last=$4
builtin cd /proc || exit 2
list() {
    victims=()
    local pid stat
    for pid in [0-9]*; do
        [[ $pid == "$$" || $pid == "$PPID" || $pid == 1 ]] && continue
        stat=
        { read -r -d '' stat <"$pid/stat"; } 2>/dev/null
        set -- ${stat##*)}
        [[ -z $1 || $1 == [ZXx] ]] && continue
        ((${20} > since || (${20} == since && pid > last))) && kill -0 "$pid" 2>/dev/null && victims+=("$pid")
    done
    ((${#victims[@]}))
}
ignores_interrupts() {
    local key value
    while read -r key value; do
        [[ $key == SigIgn: ]] && (((16#$value >> 25) & 1)) && return 0
    done <"$shell/status"
    return 1
}
if [[ $mode == interrupt ]]; then
    ignores_interrupts && kill -KILL "$shell"
    kill -VTALRM "$shell"
    kill -CONT "$shell"
    list && { kill -TERM "${victims[@]}"; kill -CONT "${victims[@]}"; }
    exit 0
fi
[[ $mode == shell ]] && kill -KILL "$shell"
[[ $mode == everything ]] && kill -KILL -- -1 && since=0
while list; do
    kill -KILL "${victims[@]}"
    ((SECONDS < 3)) || exit 1
done 2>/dev/null
exit 0
"""
"""Stops processes of the agent inside the sandbox, with builtins alone, so that it works in any image and at the
process limit. A process belongs to the command when it started after the stamp: in a later clock tick, or in the same
tick and with a higher process id. Zombies count as gone. The modes:

interrupt   ask the shell to give up the command (one that ignores that is killed), then ask the processes to end: in
            this order, so that nothing more of the command can run
kill        end the processes; fails when one is left
shell       end the shell, then the processes
everything  end every process of the agent
"""


def killer_argv(mode: str, *, shell: int, since: int, last: int) -> list[str]:
    """Arguments for `Sandbox.exec`. `since`: clock ticks since boot; `last`: process id."""
    return ["bash", "--noprofile", "--norc", "-c", KILLER, "killer", mode, str(shell), str(since), str(last)]
