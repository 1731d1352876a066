"""Whether this machine lets us make sandboxes: tried for real, in namespaces that vanish with the process."""

from __future__ import annotations

import os
import sys

from . import kernel, seccomp

_PLACE = "/tmp"  # noqa: S108 (only covered, in a mount namespace of our own)


def main() -> None:
    """Print the reason and exit with 1 when it cannot be done."""
    try:
        _try()
    except OSError as error:
        sys.stdout.write(error.strerror or str(error))
        sys.stdout.flush()
        os._exit(1)


def _try() -> None:
    if kernel.MACHINE not in seccomp.SUPPORTED:
        raise OSError(0, f"no system call filter for {kernel.MACHINE}")
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("trial", _PLACE, "tmpfs")
    os.chdir(_PLACE)
    for name in ("lower", "layer", "work", "root"):
        os.mkdir(name)
    kernel.mount("overlay", "root", "overlay", kernel.MS_NODEV, "lowerdir=lower,upperdir=layer,workdir=work,volatile")
    os.close(kernel.open_tree("root"))
    os.mknod("root/null", 0o20666, os.makedev(1, 3))
    own = os.pidfd_open(os.getpid())
    kernel.setns(own, kernel.CLONE_NEWUTS)
    kernel.unshare(kernel.CLONE_NEWPID)
