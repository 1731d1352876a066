"""The spawner's parts that need no privilege: filter, control group files, trees, accounts."""

import errno
import os
import struct
from pathlib import Path

import pytest

from sandbox.namespace.zygote import seccomp
from sandbox.namespace.zygote.cgroups import Cgroups, Limits
from sandbox.namespace.zygote.tree import remove_tree

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def decide(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the kernel's interpreter makes of the filter for one call."""
    program = list(struct.iter_unpack("=HBBI", seccomp.assemble(machine)))
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, arch or ARCHES[machine], 0, *padded)
    register, position = 0, 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        if code == 0x20:
            (register,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return value
        else:
            taken = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[code]
            position += if_true if taken else if_false


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        ("x86_64", {"read": 0, "execve": 59, "mount": 165, "ptrace": 101, "clone": 56, "ioctl": 16, "socket": 41}),
        ("aarch64", {"read": 63, "execve": 221, "mount": 40, "ptrace": 117, "clone": 220, "ioctl": 29, "socket": 198}),
    ],
)
def test_the_filter_decides_each_call_as_meant(machine, calls):
    assert decide(machine, calls["read"]) == ALLOW
    assert decide(machine, calls["execve"]) == ALLOW
    assert decide(machine, calls["mount"]) == EPERM
    assert decide(machine, calls["ptrace"]) == EPERM
    assert decide(machine, 435) == ENOSYS
    assert decide(machine, 425) == EPERM
    assert decide(machine, calls["clone"], 17) == ALLOW
    assert decide(machine, calls["clone"], 0x003D0F00) == ALLOW
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, calls["clone"], flag | 17) == EPERM
    assert decide(machine, calls["ioctl"], 0, 0x5401) == ALLOW
    assert decide(machine, calls["ioctl"], 0, 0x5412) == EPERM
    assert decide(machine, calls["ioctl"], 0, 0xFFFF_FFFF_0000_5412) == EPERM
    assert decide(machine, calls["socket"], 2, 1) == ALLOW
    assert decide(machine, calls["socket"], 40, 1) == EPERM
    assert decide(machine, calls["read"], arch=0x40000003) == KILL


def test_the_x32_calls_do_not_exist():
    assert decide("x86_64", 0x40000000) == ENOSYS


def fake_v2(base: Path) -> None:
    for directory in (base, base / "termloom"):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpu memory pids\n")
        (directory / "cgroup.subtree_control").write_text("cpu memory pids\n")


def prepare(directory: Path, names: tuple[str, ...]) -> None:
    """The kernel makes these files with the directory; here they must be there first."""
    for name in names:
        (directory / name).touch()


def test_version_two_files_get_their_values(tmp_path, monkeypatch):
    fake_v2(tmp_path)
    groups = Cgroups.detect(str(tmp_path))
    assert groups.notes == ()
    assert groups.unified
    names = ("memory.max", "pids.max", "cpu.max", "cgroup.procs")
    real = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path: (real(path), prepare(Path(path), names)))
    groups.create("box", Limits(memory_mb=64, pids=10, cpus=0.5))
    box = tmp_path / "termloom" / "box"
    assert [(box / name).read_text() for name in names[:3]] == [str(64 << 20), "11", "50000 100000"]
    groups.join("box")
    assert (box / "cgroup.procs").read_text() == "0"
    (box / "cgroup.procs").write_text("12\n13\n")
    assert groups.processes("box") == {12, 13}
    assert groups.oom_kills("box") == 0
    (box / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert groups.oom_kills("box") == 3
    assert groups.names() == {"box"}


def test_version_two_enables_the_controllers_for_its_groups(tmp_path):
    fake_v2(tmp_path)
    (tmp_path / "termloom" / "cgroup.subtree_control").write_text("xxxxxx cpu memory\n")
    Cgroups.detect(str(tmp_path))
    assert (tmp_path / "termloom" / "cgroup.subtree_control").read_text() == "+pidsx cpu memory\n"


def test_where_nothing_can_be_written_every_limit_is_noted(tmp_path):
    groups = Cgroups.detect(str(tmp_path))
    assert [note.split()[1] for note in groups.notes] == ["memory", "pids", "cpu"]
    assert not groups.limits_memory
    groups.create("box", Limits(memory_mb=64, pids=10, cpus=0.5))
    assert groups.processes("box") == set()
    groups.remove("box")


def test_removing_a_tree_leaves_what_its_links_point_to(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for name in ("tree", "link", "absent"):
        remove_tree(str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (tmp_path / "outside" / "file").exists()
