"""The command `termloom`.

Commands come from the entry point group `termloom.commands`: name = `module:function`. A command is a function, async
or not, whose keyword-only parameters are its options and whose first docstring line is its help. It returns an exit
code, or None for 0. Other packages add commands in the same way.

Invariants:
- `--help` imports no command: the one line of each is read from its source.
- What the user did wrong is one line on standard error, exit code 2; what is wrong around the program is one line,
  exit code 1; an interrupted command gives 130. Only a bug shows a traceback.
- Standard input, output and error are open: what was closed is /dev/null, and no file of ours takes its number.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from cyclopts import App, CycloptsError, UnknownCommandError

from runtime.causes import first_cause
from runtime.errors import RuntimeFault, TaskInvalid, UserError
from runtime.interrupts import EXIT_CODE, Interrupted
from runtime.machine import refusal
from runtime.plain_text import printable
from sandbox.errors import SandboxError

GROUP = "termloom.commands"
_EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "safetensors", "numpy"), "train"),
    "nats": "nats",
    "pyarrow": "data",
    "matplotlib": "plots",
    "tensorboard": "track",
}
"""By module: the extra of ours that installs it."""
_THREADS_S = 1.0
"""For threads that are just ending."""


def build_app(group: str = GROUP) -> App:
    """The command line with every registered command, none of them imported."""
    app = App(
        name="termloom",
        help="Verified terminal tasks, trajectories with recoveries, rollouts in real sandboxes, asynchronous PPO.",
        version=lambda: f"termloom {version('termloom')}",
        version_flags=["--version"],
        help_format="plaintext",  # Markdown would be half of what --help costs
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        app.command(point.value, name=point.name, help=_first_line(point))
    return app


def run(arguments: Sequence[str], *, group: str = GROUP) -> int:
    """Run one command line; returns the exit code."""
    app = build_app(group)
    code: int | None
    try:
        result = app(list(arguments))
    except UnknownCommandError:
        message, code = _unknown_command(arguments[0], app), 2
    except KeyboardInterrupt:
        return EXIT_CODE
    except Exception as error:
        cause = first_cause(error)
        cause = refusal(cause) or _missing_extra(cause) or cause
        message, code = str(cause), _exit_code(cause)
        if code is None:
            raise
    else:
        return result if isinstance(result, int) else 0
    sys.stderr.write(f"termloom: {printable(' '.join(message.split()))}\n")
    return code


def _missing_extra(error: BaseException) -> UserError | None:
    """What to install, where that is all that is wrong."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    if (extra := _EXTRAS.get(module)) is None:
        return None
    install = f"`scripts/setup.sh {extra}` in a checkout, else `pip install 'termloom[{extra}]'`"
    return UserError(module, f"is not installed; the extra '{extra}' brings it", f"Run {install}")


def _exit_code(error: BaseException) -> int | None:
    """None: a bug."""
    match error:
        case CycloptsError() | UserError() | TaskInvalid():
            return 2
        case RuntimeFault() | SandboxError():
            return 1
        case Interrupted():
            return EXIT_CODE
    return None


def main() -> NoReturn:
    """The program."""
    _open_standard_streams()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:  # its reader has gone, or its disk is full
        code = code or 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process. A thread that was given up in the middle of its work is not waited for: the interpreter would
    wait as long as it takes.
    """
    end = time.monotonic() + _THREADS_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                os._exit(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Also: what the terminal's encoding lacks is shown as `?`."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _unknown_command(name: str, app: App) -> str:
    """Said here, as the parser's own suggestion would import every command."""
    near = difflib.get_close_matches(name, app, n=1)
    return f"unknown command '{name}'. " + (f"Did you mean '{near[0]}'?" if near else "See termloom --help")


def _first_line(point: EntryPoint) -> str:
    """The first line of the command's docstring, from the source; empty where there is none to read."""
    try:
        spec = find_spec(point.module)
    except ModuleNotFoundError:  # its parent package is gone; the others must still be listed
        return ""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
