"""Freezing, stacking, and grading sandboxes over what an agent left."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from sandbox.base import BASE_DOCKERFILE
from sandbox.basebuild import Base
from sandbox.docker.client import Client, answering
from sandbox.docker.container import remove_container
from sandbox.docker.engine import DockerEngine
from sandbox.docker.images import _claim, ensure_trusted_volume
from sandbox.docker.labels import TRUSTED_VOLUME
from sandbox.errors import EngineFault, SandboxLost
from sandbox.owner import owner_token
from sandbox.spec import TRUSTED_DIR, File, Limits, Profile, SandboxSpec
from sandbox.trusted import trusted_argv
from tests.sandbox.docker.conftest import LIMITS, RUN, OpenEngine, started

pytestmark = pytest.mark.docker


def over(image: str, profile: Profile = Profile.AGENT) -> SandboxSpec:
    return SandboxSpec(image=image, profile=profile, limits=LIMITS, run_id=RUN)


async def frozen_after(engine: DockerEngine, script: str, dockerfile: str = BASE_DOCKERFILE) -> str:
    async with started(engine, dockerfile=dockerfile) as sandbox:
        assert (await sandbox.exec(["bash", "-c", script])).exit_code == 0
        return await sandbox.freeze()


async def test_frozen_file_system_is_the_start_of_the_next_sandbox(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        first = await frozen_after(engine, "echo one > one; (while :; do date >> ticks; done) >/dev/null 2>&1 &")
        async with await engine.create(over(first)) as sandbox:
            assert (await sandbox.exec(["cat", "one"])).stdout == b"one\n"
            assert (await sandbox.exec(["pgrep", "-u", "agent", "-f", "date"])).exit_code == 1
            await sandbox.exec(["sh", "-c", "echo two > two"])
            second = await sandbox.freeze()
        await engine.remove_image(first)
        async with await engine.create(over(second)) as sandbox:
            assert (await sandbox.exec(["cat", "one", "two"])).stdout == b"one\ntwo\n"
        await engine.remove_image(second)
        await engine.remove_image(second)
        with pytest.raises(EngineFault):
            await engine.create(over(second))


async def test_frozen_sandbox_cannot_run_again(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        await sandbox.freeze()
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])


async def test_leaving_the_engine_removes_what_is_left(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        image = await frozen_after(engine, "true")
        left = await engine.create(over(image))
    async with open_docker() as engine:
        assert left.id not in {record.sandbox_id for record in await engine.inventory()}
        with pytest.raises(EngineFault):
            await engine.create(over(image))


TRAPS = """
FROM termloom-base
RUN mkdir -p /logs/verifier /opt/evil && ln -s /opt/evil /tests && echo 1 > /logs/verifier/reward.txt \
 && echo /opt/evil/preload.so > /etc/ld.so.preload.off && ln -s /etc/ld.so.preload.off /etc/ld.so.preload \
 && echo 'import os; os._exit(0)' > /usr/lib/python3.11/sitecustomize.py && echo 'hosts: evil' > /etc/nsswitch.conf
"""


async def test_grading_starts_clean_with_the_trusted_interpreter_out_of_reach(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        image = await frozen_after(engine, "echo left > answer", TRAPS.lstrip())
        async with await engine.create(over(image, Profile.GRADE)) as sandbox:
            gone = await sandbox.exec(["ls", "-d", "/tests", "/logs", "/etc/ld.so.preload"], user="root")
            assert gone.stdout == b""
            look = (
                "import sys, pytest, socket; "
                "print(sys.prefix, pytest.__file__, open('answer').read(), socket.gethostbyname('localhost'))"
            )
            result = await sandbox.exec([*trusted_argv(), "-c", look], user="root", cwd="/home/agent")
            prefix, module, answer, address = result.stdout.decode().split()
            assert prefix == TRUSTED_DIR
            assert module.startswith(TRUSTED_DIR)
            assert (answer, address) == ("left", "127.0.0.1")
            for user in ("agent", "root"):
                assert (await sandbox.exec(["touch", f"{TRUSTED_DIR}/x"], user=user)).exit_code == 1


async def test_the_trusted_tree_is_looked_for_once_and_again_after_a_failure(
    open_docker: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def noted(client: Client, base: Base, image: str, *, owner: str) -> str:
        asked.append(image)
        return await ensure_trusted_volume(client, base, image, owner=owner)

    monkeypatch.setattr("sandbox.docker.engine.ensure_trusted_volume", noted)
    async with open_docker() as engine:
        image = await frozen_after(engine, "true")
        for _ in range(3):
            async with await engine.create(over(image, Profile.GRADE)):
                pass
        assert len(asked) == 1
        with pytest.raises(EngineFault, match="memory"):
            await engine.create(SandboxSpec(image=image, profile=Profile.GRADE, limits=Limits(memory_mb=1)))
        async with await engine.create(over(image, Profile.GRADE)):
            pass
        assert len(asked) == 2


async def test_a_trusted_volume_whose_filler_died_is_taken_over_at_once(
    open_docker: OpenEngine, tmp_path: Path
) -> None:
    digest, (here, pid, ticks) = RUN, owner_token().split(":")
    (tmp_path / "trusted").mkdir()
    base = Base(tar=tmp_path, rootfs=tmp_path, trusted=tmp_path / "trusted", digest=digest)
    volume, filler = f"{TRUSTED_VOLUME}-{digest}", f"trusted-{digest}"
    async with open_docker() as engine, Client(None) as client:
        image = await engine._base_image()
        try:
            assert await _claim(client, filler, volume, image, f"{here}:{pid}:{int(ticks) - 1}")
            with anyio.fail_after(60):
                assert await ensure_trusted_volume(client, base, image, owner=owner_token()) == volume
            assert await _claim(client, filler, volume, image, owner_token())
            with anyio.move_on_after(2) as waited:
                await ensure_trusted_volume(client, base, image, owner=owner_token())
            assert waited.cancelled_caught, "its holder is alive"
        finally:
            await remove_container(client, filler)
            with answering("removing a volume", 30):
                await client.ask("DELETE", f"volumes/{volume}")


async def test_agent_sandbox_has_no_trusted_tree(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        assert (await sandbox.exec(["test", "-e", TRUSTED_DIR])).exit_code == 1


async def test_grading_root_reads_and_replaces_files_of_the_agent(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        image = await frozen_after(engine, "mkdir -m 700 private; echo secret > private/file; chmod 400 private/file")
        async with await engine.create(over(image, Profile.GRADE)) as sandbox:
            assert (await sandbox.exec(["cat", "private/file"], user="root")).stdout == b"secret\n"
            await sandbox.put([File(path="/tests/a", data=b"")])
            assert (await sandbox.exec(["sh", "-c", "echo x > /tests/a"], user="agent")).exit_code != 0
