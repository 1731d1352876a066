"""The program that a sandbox's first process turns into: it sleeps for the lifetime, and ends.

A forked interpreter keeps one and a half megabytes of its own and the spawner's memory in sight; this keeps one page.
Assembled here because nothing of the host and nothing of the image may be needed to start a sandbox. On a machine
without an entry in `_CODE` the fork itself sleeps, which is the same but for the memory.
"""

from __future__ import annotations

import os
import struct

from .kernel import MACHINE

_ADDRESS = 0x400000
_ELF_HEADER, _PROGRAM_HEADER = 64, 56
_ELF_MACHINE = 62
_CODE = {
    "x86_64": bytes.fromhex(
        "488d3d12000000"  # lea rdi, [rip + 18]: the time behind the code
        "31f6"  # xor esi, esi
        "b823000000"  # mov eax, 35: nanosleep
        "0f05"  # syscall
        "31ff"  # xor edi, edi
        "b8e7000000"  # mov eax, 231: exit_group
        "0f05"  # syscall
    ),
}


def program(seconds: float) -> bytes | None:
    """An ELF executable that sleeps that long and exits with 0; None on a machine that it is not written for."""
    code = _CODE.get(MACHINE)
    if code is None:
        return None
    start = _ELF_HEADER + _PROGRAM_HEADER
    body = code + struct.pack("=qq", int(seconds), int(seconds % 1 * 1_000_000_000))
    size = start + len(body)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    fields = (2, _ELF_MACHINE, 1, _ADDRESS + start, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0)
    header = identity + struct.pack("=HHIQQQIHHHHHH", *fields)
    segment = struct.pack("=IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)
    return header + segment + body


def become(seconds: float) -> None:
    """Replace the caller by the program; returns when that cannot be done here."""
    executable = program(seconds)
    if executable is None:
        return
    try:
        descriptor = os.memfd_create("init")
        os.write(descriptor, executable)
        os.execve(descriptor, ["init"], {})  # noqa: S606 (no shell is the point)
    except OSError:  # a kernel may forbid executable memory files
        return
