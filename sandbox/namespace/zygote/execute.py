"""What a fork does on its way to becoming a process of a sandbox: its first one, or one more.

Runs between fork and exec (or instead of it, for the first process). A failure is an exception that the caller reports;
a program that cannot be started is the command's own failure, said on its standard error with the shell's exit codes.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn, TypedDict

from . import idler, kernel
from .accounts import identity_of
from .cgroups import Cgroups
from .privileges import Identity, become, keep_only, limit_resources

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127
_OOM_SCORE = "500"


class Command(TypedDict):
    """One process to run in a sandbox."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    """Empty for the user's home."""
    user: str


def idle(lifetime_s: float, ready: Callable[[], None]) -> None:
    """Be the first process of a sandbox: its children's ends are collected by the kernel, its own end ends them all."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    keep_only("agent")
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    deadline = time.monotonic() + lifetime_s
    ready()
    idler.become(lifetime_s)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(left)


def isolate(cgroups: Cgroups, group: str, *, host_network: bool) -> None:
    """Move the caller, already in a process namespace of its own, into the sandbox's group and other namespaces."""
    cgroups.join(group)
    network = 0 if host_network else kernel.CLONE_NEWNET
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | network)
    socket.sethostname("sandbox")
    if not host_network:
        kernel.loopback_up()


def enter(cgroups: Cgroups, group: str, first: int, namespaces: int) -> None:
    """Join a running sandbox's group and `namespaces`, `first` being a pidfd of its first process."""
    cgroups.join(group)
    kernel.setns(first, namespaces)


def prefer_for_oom() -> None:
    """Let the out-of-memory killer take commands before the sandbox's first process."""
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, _OOM_SCORE.encode())
    os.close(descriptor)


def run(command: Command, profile: str, stdio: list[int], program: bytes, address_space: int | None) -> NoReturn:
    """Replace the caller by `command`. Raises: OSError when the sandbox cannot be set up for it."""
    os.setsid()
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    try:
        identity = identity_of(command["user"])
    except LookupError as error:
        _give_up(str(error), _CANNOT_EXECUTE)
    limit_resources(address_space)
    _default_signals()
    become(identity, profile, program)
    directory = command["cwd"] or identity.home
    try:
        os.chdir(directory)
    except OSError as error:
        _give_up(f"{directory}: {error.strerror}", _CANNOT_EXECUTE)
    try:
        _exec(command["argv"], _base_environment(identity) | command["env"])
    except OSError as error:
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_EXECUTE
        _give_up(f"{command['argv'][0]}: {error.strerror}", code)


def _give_up(message: str, code: int) -> NoReturn:
    """The caller's mistake, told as a shell tells it."""
    os.write(2, f"{message}\n".encode("utf-8", "surrogateescape"))
    os._exit(code)


def _default_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _base_environment(identity: Identity) -> dict[str, str]:
    return {
        "PATH": DEFAULT_PATH,
        "HOME": identity.home,
        "USER": identity.name,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def _exec(argv: list[str], environment: dict[str, str]) -> NoReturn:
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, environment)  # noqa: S606 (no shell is the point)
    denied: OSError | None = None
    for directory in environment["PATH"].split(":"):
        try:
            os.execve(f"{directory or '.'}/{program}", argv, environment)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    raise denied or FileNotFoundError(2, "command not found", program)
