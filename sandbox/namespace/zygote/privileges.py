"""Who a process in a sandbox is, and what it may do: ids, capabilities, limits, filter.

`become` is the last step before exec. Everything it takes away is gone for good: the bounding set is emptied to the
profile's capabilities and no_new_privs is set, so no setuid file and no file capability gives anything back.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import NamedTuple

from . import kernel

_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6,
    "SETUID": 7, "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "MKNOD": 27, "SETFCAP": 31,
}  # fmt: skip

_PROFILES = {
    "agent": "",
    "build": "CHOWN DAC_OVERRIDE FOWNER FSETID SETUID SETGID SETPCAP KILL NET_BIND_SERVICE SYS_CHROOT SETFCAP MKNOD",
    "grade": "DAC_OVERRIDE DAC_READ_SEARCH CHOWN FOWNER SETUID SETGID KILL",
    "transfer": "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID",
}
_OPEN_FILES = (1024, 16384)


class Identity(NamedTuple):
    """A user as the sandbox's own /etc/passwd knows it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


def mask_of(profile: str) -> int:
    return sum(1 << _CAPABILITIES[name] for name in _PROFILES[profile].split())


def drop_bounding_set(mask: int) -> None:
    """Give up for ever every capability outside `mask`. Needs CAP_SETPCAP."""
    for capability in range(64):
        if not mask >> capability & 1:
            try:
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: the kernel knows no capability this high
                    raise
                return


def limit_resources(address_space: int | None) -> None:
    """`address_space` bytes for each process: the fallback where no memory cgroup can be made."""
    soft, hard = _OPEN_FILES
    hard = min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if address_space is not None:
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def become(identity: Identity, profile: str, program: bytes) -> None:
    """Turn the calling process, still root, into `identity` under `profile` and the system call filter."""
    mask = mask_of(profile)
    drop_bounding_set(mask)
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    kernel.capset(mask if identity.uid == 0 else 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.seccomp(program)


def keep_only(profile: str) -> None:
    """Stay root with nothing but the capabilities of `profile`: for our own code that works inside a sandbox."""
    mask = mask_of(profile)
    drop_bounding_set(mask)
    kernel.capset(mask)
