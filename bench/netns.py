"""Network namespaces joined to this one, each as if it were another machine on the same network. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """One network namespace."""

    name: str
    gateway: str
    """Our address on the wire to it."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command that is to run there. File systems and control groups stay those of the machine."""
        return ("nsenter", f"--net=/run/netns/{self.name}")


@contextmanager
def elsewhere(count: int) -> Iterator[Sequence[Elsewhere]]:
    """So many namespaces. Each reaches this machine's addresses, and nothing else."""
    with ExitStack() as stack:
        yield [stack.enter_context(_joined(number)) for number in range(count)]


@contextmanager
def _joined(number: int) -> Iterator[Elsewhere]:
    tag = f"{os.getpid() % 100_000}"
    name, ours, theirs = f"termloom-{tag}-{number}", f"tl{tag}o{number}", f"tl{tag}t{number}"
    network = f"198.18.{(os.getpid() + number) % 256}"  # set aside for benchmarks, so that nobody else has it
    _ip("netns", "add", name)
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _ip("address", "add", f"{network}.1/30", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", name, "address", "add", f"{network}.2/30", "dev", theirs)
        _ip("-n", name, "link", "set", theirs, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", f"{network}.1")
        yield Elsewhere(name=name, gateway=f"{network}.1")
    finally:
        _ip("netns", "delete", name)  # and the wire with it


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
