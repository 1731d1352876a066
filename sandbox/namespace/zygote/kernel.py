"""The system calls that Python 3.11 lacks, each raising OSError with the call's name.

The numbers of `pivot_root`, `open_tree` and `move_mount` are the same wherever two are equal and looked up by machine
where they are not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

MACHINE = os.uname().machine

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}.get(MACHINE, -1)
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_AT_FDCWD = -100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options) or None)
    _check(result, f"mount {kind or 'flags'} on {target}")


def unmount(target: str) -> None:
    """Detach `target` from the tree; what still uses it keeps it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_libc.syscall(_SYS_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old)), "pivot_root")


def open_tree(path: str) -> int:
    """A detached copy of the mount at `path`, as a descriptor that can be attached in another mount namespace."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    return _check(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open_tree {path}")


def move_mount(tree: int, target: str) -> None:
    """Attach a tree from `open_tree`; consumes the descriptor."""
    try:
        result = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        _check(result, f"move_mount {target}")
    finally:
        os.close(tree)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    _check(_libc.setns(descriptor, flags), "setns")


def prctl(option: int, value: int = 0, argument: int = 0) -> None:
    words = (ctypes.c_ulong(value), ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(_libc.prctl(option, *words), f"prctl {option}")


def capset(mask: int) -> None:
    """Make `mask` the permitted and effective capabilities, none inheritable."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.syscall(_SYS_CAPSET, header, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def seccomp(program: bytes) -> None:
    """Install a BPF program of 8-byte instructions. Needs no_new_privs."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    buffer = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(buffer))


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", request)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def rename_process(name: str) -> None:
    """Replace name and command line, which every process can read in /proc and which would tell paths of the host."""
    title = ctypes.create_string_buffer(name.encode())
    prctl(PR_SET_NAME, ctypes.addressof(title))
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, name.encode(), min(len(name), end - start - 1))
