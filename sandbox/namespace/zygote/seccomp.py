"""The system call filter: a deny-list, assembled by hand.

A refused call answers EPERM, `clone3` answers ENOSYS so that the C library falls back to `clone`, whose flags the
filter can read. A call of another architecture kills the process. The list is Docker's in spirit: what only an
administrator needs, what reaches into other processes, and what has been a way out before.
"""

from __future__ import annotations

import errno
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED: tuple[tuple[str, int | None, int | None], ...] = (
    ("mount", 165, 40),
    ("umount2", 166, 39),
    ("pivot_root", 155, 41),
    ("open_tree", 428, 428),
    ("move_mount", 429, 429),
    ("fsopen", 430, 430),
    ("fsconfig", 431, 431),
    ("fsmount", 432, 432),
    ("fspick", 433, 433),
    ("mount_setattr", 442, 442),
    ("open_tree_attr", 467, 467),
    ("unshare", 272, 97),
    ("setns", 308, 268),
    ("ptrace", 101, 117),
    ("process_vm_readv", 310, 270),
    ("process_vm_writev", 311, 271),
    ("kcmp", 312, 272),
    ("pidfd_getfd", 438, 438),
    ("open_by_handle_at", 304, 265),
    ("kexec_load", 246, 104),
    ("kexec_file_load", 320, 294),
    ("init_module", 175, 105),
    ("finit_module", 313, 273),
    ("delete_module", 176, 106),
    ("create_module", 174, None),
    ("bpf", 321, 280),
    ("perf_event_open", 298, 241),
    ("userfaultfd", 323, 282),
    ("fanotify_init", 300, 262),
    ("io_uring_setup", 425, 425),
    ("io_uring_enter", 426, 426),
    ("io_uring_register", 427, 427),
    ("keyctl", 250, 219),
    ("add_key", 248, 217),
    ("request_key", 249, 218),
    ("lookup_dcookie", 212, 18),
    ("reboot", 169, 142),
    ("swapon", 167, 224),
    ("swapoff", 168, 225),
    ("acct", 163, 89),
    ("quotactl", 179, 60),
    ("quotactl_fd", 443, 443),
    ("settimeofday", 164, 170),
    ("clock_settime", 227, 112),
    ("clock_adjtime", 305, 266),
    ("syslog", 103, 116),
    ("vhangup", 153, 58),
    ("uselib", 134, None),
    ("iopl", 172, None),
    ("ioperm", 173, None),
)
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_IOCTL = {"x86_64": 16, "aarch64": 29}
_SOCKET = {"x86_64": 41, "aarch64": 198}

_NAMESPACE_FLAGS = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_ALG, _AF_VSOCK = 38, 40
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

SUPPORTED = tuple(_AUDIT_ARCH)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(code: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _ERRNO | code)


def _refuse_call(number: int, code: int = errno.EPERM) -> bytes:
    return _instruction(_JUMP_EQUAL, number, 0, 1) + _refuse(code)


def _refuse_argument(number: int, index: int, test: int, values: tuple[int, ...]) -> bytes:
    """Refuse call `number` when the low word of argument `index` passes `test` for one of `values`."""
    load = _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * index)
    tests = b"".join(_instruction(test, value, 0, 1) + _refuse() for value in values)
    reload = _instruction(_LOAD, _OFFSET_NUMBER)
    body = load + tests + reload
    return _instruction(_JUMP_EQUAL, number, 0, len(body) // 8) + body


def assemble(machine: str) -> bytes:
    """The filter for `machine`, one of SUPPORTED, as `struct sock_filter` instructions."""
    column = SUPPORTED.index(machine) + 1
    program = _instruction(_LOAD, _OFFSET_ARCH)
    program += _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0) + _instruction(_RETURN, _KILL)
    program += _instruction(_LOAD, _OFFSET_NUMBER)
    if machine == "x86_64":
        program += _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1) + _refuse(errno.ENOSYS)
    program += _refuse_call(_CLONE3, errno.ENOSYS)
    program += _refuse_argument(_CLONE[machine], 0, _JUMP_ANY_BIT, (_NAMESPACE_FLAGS,))
    program += _refuse_argument(_IOCTL[machine], 1, _JUMP_EQUAL, (_TIOCSTI, _TIOCLINUX))
    # Neither family knows network namespaces: VSOCK would reach the hypervisor.
    program += _refuse_argument(_SOCKET[machine], 0, _JUMP_EQUAL, (_AF_ALG, _AF_VSOCK))
    numbers = [row[column] for row in _DENIED]
    program += b"".join(_refuse_call(number) for number in numbers if isinstance(number, int))
    return program + _instruction(_RETURN, _ALLOW)
