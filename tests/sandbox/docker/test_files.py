"""Files into and out of a container."""

from __future__ import annotations

import pytest

from sandbox.errors import SandboxLost, TransferRefused
from sandbox.spec import File, Profile
from tests.sandbox.docker.conftest import OpenEngine, started

pytestmark = pytest.mark.docker


async def test_files_arrive_with_owner_mode_and_parents(open_docker: OpenEngine) -> None:
    files = (
        File(path="/home/agent/deep/er/own.sh", data=b"#!/bin/sh\n", mode=0o755, owner="agent"),
        File(path="/srv/data/theirs.txt", data=b"\xff\x00\n", mode=0o600),
    )
    look = "stat -c '%U %a' /home/agent/deep/er /home/agent/deep/er/own.sh /srv/data/theirs.txt /srv /home/agent"
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.put(files)
        seen = (await sandbox.exec(["bash", "-c", look])).stdout.decode().splitlines()
        assert seen == ["agent 755", "agent 755", "root 600", "root 755", "agent 755"]
        assert await sandbox.get("/srv/data/theirs.txt") == b"\xff\x00\n"
        assert await sandbox.get("/home/agent/deep/er/own.sh") == b"#!/bin/sh\n"


async def test_only_regular_files_are_taken(open_docker: OpenEngine) -> None:
    make = "ln -s /etc/passwd link; mkfifo pipe; mkdir dir; ln -s / up; touch empty"
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.exec(["bash", "-c", make])
        for name in ("link", "pipe", "dir", "missing", "dir/missing", "empty/below"):
            assert await sandbox.get(f"/home/agent/{name}") is None, name
        assert await sandbox.get("/home/agent/empty") == b""
        assert (await sandbox.get("/home/agent/up/etc/hostname")) is not None


async def test_symlinks_of_the_sandbox_never_lead_to_the_host(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.exec(["bash", "-c", "ln -s ../../../../../../proc/1 climb; ln -s /tmp out"])
        await sandbox.put([File(path="/home/agent/out/inside.txt", data=b"x")])
        assert (await sandbox.exec(["cat", "/tmp/inside.txt"])).stdout == b"x"
        assert await sandbox.get("/home/agent/climb/cmdline") is None


async def test_too_large_a_file_and_a_relative_path_are_refused(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.exec(["sh", "-c", "head -c 2000 /dev/zero > big"])
        with pytest.raises(TransferRefused, match="2000 bytes"):
            await sandbox.get("/home/agent/big", max_bytes=1999)
        assert await sandbox.get("/home/agent/big", max_bytes=2000) == bytes(2000)
        with pytest.raises(TransferRefused, match="not absolute"):
            await sandbox.get("big")
        with pytest.raises(TransferRefused, match="not absolute"):
            await sandbox.put([File(path="../etc/passwd", data=b"")])


async def test_large_file_goes_in_and_comes_out_whole(open_docker: OpenEngine) -> None:
    data = bytes(range(256)) * (4 << 12)
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.put([File(path="/tmp/large", data=data)])
        assert await sandbox.get("/tmp/large", max_bytes=len(data)) == data


async def test_transfers_with_a_removed_sandbox_tell_that_it_is_lost(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.remove()
        with pytest.raises(SandboxLost):
            await sandbox.put([File(path="/tmp/x", data=b"")])
        with pytest.raises(SandboxLost):
            await sandbox.get("/tmp/x")


async def test_grading_sandbox_takes_root_owned_tests(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine, profile=Profile.GRADE) as sandbox:
        await sandbox.put([File(path="/tests/test_outputs.py", data=b"x = 1\n")])
        result = await sandbox.exec(["stat", "-c", "%U", "/tests", "/tests/test_outputs.py"], user="root")
        assert result.stdout == b"root\nroot\n"
