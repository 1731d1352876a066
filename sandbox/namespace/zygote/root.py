"""The root file system of one sandbox, put together in the sandbox's own mount namespace.

Two mount namespaces are involved. The *vault* holds one tmpfs for each sandbox: the upper layer, whose size is the disk
limit and which outlives the sandbox's processes, so that it can become a frozen image's layer. The sandbox's own
namespace gets detached copies of just the vault mounts that it needs; starting one costs the same with five thousand
others there.

No device node works outside /dev, and /dev itself is read-only: a sandbox with CAP_MKNOD reaches no disk of the host.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, TypedDict

from . import kernel
from .tree import remove_tree

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}  # fmt: skip
_MASKED_FILES = ("interrupts", "kcore", "keys", "latency_stats", "sched_debug", "timer_list", "timer_stats")
_MASKED_DIRECTORIES = ("acpi", "asound", "scsi")
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_UNTRUSTED = ("/etc/ld.so.preload", "/tests", "/logs")
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
_RESOLVER = "/etc/resolv.conf"
_INODES_PER_MB = 256


class Layer(TypedDict):
    """A lower layer: a directory of the host, or the upper layer of a sandbox that was frozen."""

    kind: str
    """`directory` or `vault`."""
    name: str


class Plan(NamedTuple):
    layers: tuple[Layer, ...]
    """Topmost first; the last one is the base."""
    upper: str
    """Directory of the host that holds `layer` and `work`; empty for a tmpfs in the vault."""
    name: str
    disk_mb: int
    trusted: str
    """Directory of the host to show read-only at `trusted_at`; empty for none."""
    trusted_at: str
    host_network: bool


def make_vault(place: str) -> int:
    """Make the vault on the directory `place` and return its descriptor. The caller stays where it is."""
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("vault", place, "tmpfs", kernel.MS_NODEV, "mode=700")
        vault = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.setns(own, kernel.CLONE_NEWNS)
        return vault
    finally:
        os.close(own)


class _Inside:
    """Be in another mount namespace for a while."""

    def __init__(self, namespace: int) -> None:
        self._namespace = namespace

    def __enter__(self) -> None:
        self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.setns(self._namespace, kernel.CLONE_NEWNS)

    def __exit__(self, *_: object) -> None:
        kernel.setns(self._own, kernel.CLONE_NEWNS)
        os.close(self._own)


def forget(vault: int, place: str, name: str) -> None:
    """Drop an upper layer from the vault. Idempotent; a sandbox that stands on it keeps it."""
    path = f"{place}/{name}"
    with _Inside(vault):
        if os.path.isdir(path):
            if os.path.ismount(path):
                kernel.unmount(path)
            os.rmdir(path)


def enter(plan: Plan, vault: int, place: str) -> None:
    """Make the root of `plan` the root of the caller, who has a mount namespace of its own.

    `place` is an empty directory of the host on which to work.
    """
    trees = _fetch(plan, vault, place)
    trusted = kernel.open_tree(plan.trusted) if plan.trusted else -1
    resolver = kernel.open_tree(_RESOLVER) if plan.host_network and os.path.exists(_RESOLVER) else -1
    _mount_overlay(plan, trees, place)
    os.chdir("root")
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")
    _mount_proc()
    _mount_devices()
    _write_missing("/etc/hosts", _HOSTS)
    if resolver >= 0:
        _write_missing(_RESOLVER, "")
        _attach_read_only(resolver, _RESOLVER)
    if trusted >= 0:
        for path in (*_UNTRUSTED, plan.trusted_at):
            remove_tree(path)
        os.mkdir(plan.trusted_at)
        _attach_read_only(trusted, plan.trusted_at)


def _fetch(plan: Plan, vault: int, place: str) -> dict[str, int]:
    """Make the upper layer in the vault, and bring detached copies of it and of the frozen layers: name -> tree."""
    frozen = [layer["name"] for layer in plan.layers if layer["kind"] == "vault"]
    with _Inside(vault):
        if not plan.upper:
            upper = f"{place}/{plan.name}"
            os.mkdir(upper, 0o700)
            options = f"size={plan.disk_mb}m,nr_inodes={plan.disk_mb * _INODES_PER_MB},mode=700"
            kernel.mount("sandbox", upper, "tmpfs", kernel.MS_NODEV, options)
            os.mkdir(f"{upper}/layer", 0o755)
            os.mkdir(f"{upper}/work", 0o700)
            frozen.append(plan.name)
        return {name: kernel.open_tree(f"{place}/{name}") for name in frozen}


def _mount_overlay(plan: Plan, trees: dict[str, int], place: str) -> None:
    """Short relative names keep the option string below its limit of one page, however deep the stack."""
    kernel.mount("stage", place, "tmpfs", kernel.MS_NODEV, "mode=700,size=1m")
    os.chdir(place)
    os.mkdir("root")
    lower: list[str] = []
    for number, layer in enumerate(plan.layers):
        lower.append(str(number))
        if layer["kind"] == "vault":
            lower[-1] += "/layer"
            os.mkdir(str(number))
            kernel.move_mount(trees[layer["name"]], str(number))
        else:
            os.symlink(layer["name"], str(number))
    if plan.upper:
        os.symlink(plan.upper, "upper")
    else:
        os.mkdir("upper")
        kernel.move_mount(trees[plan.name], "upper")
    # volatile: nothing here survives the machine, so nothing waits for a disk. redirect_dir: directories of the image
    # can be renamed, as on a plain disk.
    options = f"lowerdir={':'.join(lower)},upperdir=upper/layer,workdir=upper/work,volatile,redirect_dir=on"
    kernel.mount("overlay", "root", "overlay", kernel.MS_NODEV, options)


def _mount_proc() -> None:
    safe = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", safe)
    for name in _READ_ONLY:
        _bind_read_only(f"/proc/{name}", f"/proc/{name}", safe)


def _mask_proc() -> None:
    """What Docker hides: an empty directory or /dev/null in its place."""
    for name in _MASKED_FILES:
        if os.path.exists(f"/proc/{name}"):
            kernel.mount("/dev/null", f"/proc/{name}", flags=kernel.MS_BIND)
    for name in _MASKED_DIRECTORIES:
        if os.path.isdir(f"/proc/{name}"):
            kernel.mount("masked", f"/proc/{name}", "tmpfs", kernel.MS_RDONLY)


def _bind_read_only(source: str, target: str, flags: int) -> None:
    if os.path.exists(source):
        kernel.mount(source, target, flags=kernel.MS_BIND)
        kernel.mount("", target, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | flags)


def _attach_read_only(tree: int, target: str) -> None:
    kernel.move_mount(tree, target)
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("", target, flags=flags)


def _mount_devices() -> None:
    kernel.mount("dev", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)  # noqa: S103
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")  # noqa: S108
    kernel.mount("", "/dev", flags=kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NOEXEC)
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    kernel.mount("shm", "/dev/shm", "tmpfs", flags | kernel.MS_NODEV, "mode=1777,size=64m")  # noqa: S108
    _mask_proc()


def _write_missing(path: str, text: str) -> None:
    """Create a file that the image lacks; whatever stands there already stays."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except (FileExistsError, FileNotFoundError):
        return
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
