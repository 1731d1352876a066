"""The engine as a whole: limits, isolation, inventory, cancellation, crashes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import anyio
import pytest
from aiohttp import web

from sandbox.base import BASE_DOCKERFILE
from sandbox.docker import labels
from sandbox.docker.client import Client, answering, probe
from sandbox.docker.config import ImageFacts
from sandbox.docker.container import Container
from sandbox.docker.engine import DockerEngine
from sandbox.docker.export import export_base
from sandbox.docker.sandbox import DockerSandbox
from sandbox.errors import EngineFault, EngineUnavailable, SandboxLost
from sandbox.reaper import reap
from sandbox.spec import BuildContext, Limits, SandboxSpec
from tests.sandbox.docker.conftest import LIMITS, RUN, OpenEngine, started

docker = pytest.mark.docker


async def base_image(engine: DockerEngine) -> str:
    return (await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE))).image


async def output(sandbox: DockerSandbox, script: str) -> str:
    result = await sandbox.exec(["bash", "-c", script])
    return (result.stdout + result.stderr).decode()


@docker
async def test_agent_has_no_network_no_capabilities_and_no_way_to_root(open_docker: OpenEngine) -> None:
    dockerfile = BASE_DOCKERFILE + "RUN cp /bin/bash /usr/bin/rootbash && chmod u+s /usr/bin/rootbash\n"
    async with open_docker() as engine, started(engine, dockerfile=dockerfile) as sandbox:
        assert await output(sandbox, "ls /sys/class/net") == "lo\n"
        assert set((await output(sandbox, "grep ^Cap /proc/self/status | cut -f2")).split()) == {"0" * 16}
        assert await output(sandbox, "rootbash -p -c 'id -u'") == "1000\n"
        assert (await sandbox.exec(["unshare", "-r", "true"])).exit_code != 0
        assert (await sandbox.exec(["kill", "-9", "1", "2"])).exit_code != 0
        assert await output(sandbox, "exec 3<>/dev/tcp/10.0.0.1/80") != ""
        assert await output(sandbox, "python3 -c 'import socket; print(socket.gethostbyname(\"localhost\"))'") == (
            "127.0.0.1\n"
        )


FORKS = """
import os, signal
children = []
try:
    while len(children) < 40:
        children.append(os.fork())
        if not children[-1]:
            signal.pause()
except OSError as error:
    print(error.strerror)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@docker
async def test_process_and_file_size_limits_hold(open_docker: OpenEngine) -> None:
    limits = Limits(pids=20, disk_mb=2, memory_mb=128, lifetime_s=60.0)
    async with open_docker() as engine, started(engine, limits=limits) as sandbox:
        assert (await sandbox.exec(["head", "-c", "3M", "/dev/zero"], output_limit=0)).exit_code == 0
        too_large = await sandbox.exec(["bash", "-c", "head -c 3M /dev/zero > big; stat -c %s big"])
        assert too_large.stdout == b"2097152\n"
        assert (await sandbox.exec(["python3", "-c", FORKS])).stdout == b"Resource temporarily unavailable\n"
        assert await output(sandbox, "ulimit -c -n") == "core file size              (blocks, -c) 0\n" + (
            "open files                          (-n) 16384\n"
        )


@docker
async def test_inventory_lists_ours_and_removal_is_idempotent(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        record = {r.sandbox_id: r for r in await engine.inventory()}[sandbox.id]
        assert (record.engine, record.run_id, record.purpose) == ("docker", RUN, "test")
        assert abs(record.created_at - time.time()) < 60
        assert record.expires_at - record.created_at == pytest.approx(LIMITS.lifetime_s, abs=60)
        await sandbox.remove()
        await sandbox.remove()
        await engine.remove(sandbox.id)
        assert sandbox.id not in {r.sandbox_id for r in await engine.inventory()}


@docker
async def test_container_of_somebody_else_from_our_image_is_not_ours(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        image = await sandbox.freeze()
        body = {"Image": image, "Cmd": ["/bin/true"], "Labels": {labels.SANDBOX: sandbox.id}}
        async with Client(None) as client:
            created = await client.ask("POST", "containers/create", data=body)
            try:
                await sandbox.remove()
                assert sandbox.id not in {r.sandbox_id for r in await engine.inventory()}
            finally:
                await client.ask("DELETE", f"containers/{created['Id']}", {"force": "1"})


@docker
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1])
async def test_cancelled_create_leaves_nothing(open_docker: OpenEngine, delay_s: float) -> None:
    async with open_docker() as engine:
        spec = SandboxSpec(image=await base_image(engine), limits=LIMITS, run_id=RUN)
        made = None
        with anyio.move_on_after(delay_s):
            made = await engine.create(spec)
        if made is not None:
            await made.remove()
        assert [r for r in await engine.inventory() if r.run_id == spec.run_id] == []


@docker
async def test_a_create_that_fails_leaves_nothing(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        spec = SandboxSpec(image=await base_image(engine), limits=Limits(memory_mb=1), run_id=RUN)
        with pytest.raises(EngineFault, match="memory"):
            await engine.create(spec)
        assert [r for r in await engine.inventory() if r.run_id == spec.run_id] == []


@docker
async def test_more_streams_than_a_default_connector_allows(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine, limits=Limits(memory_mb=512, pids=400)) as sandbox:
        for _ in range(110):
            process = await sandbox.spawn(["cat"], env={}, cwd="/")
            await process.send(b"x")
            assert await process.receive() == ("out", b"x")
        await sandbox.remove()


@docker
async def test_many_sandboxes_at_once(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        image = await base_image(engine)
        seen: list[bytes] = []

        async def live(number: int) -> None:
            spec = SandboxSpec(image=image, limits=LIMITS, run_id=RUN)
            async with await engine.create(spec) as sandbox:
                seen.append((await sandbox.exec(["echo", str(number)])).stdout)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(live, number)
        assert sorted(map(int, seen)) == list(range(20))
        assert [r for r in await engine.inventory() if r.run_id == RUN] == []


OWNER = """
import anyio, sys
from pathlib import Path
from sandbox.basebuild import Base
from sandbox.docker.engine import DockerEngine
from sandbox.spec import Limits, SandboxSpec

async def main():
    async def base(_packages):
        return Base(tar=Path(), rootfs=Path(), trusted=Path(), digest="")
    async with DockerEngine(base=base) as engine:
        spec = SandboxSpec(image=sys.argv[1], limits=Limits(memory_mb=64, lifetime_s=600), run_id="killed")
        frozen = await engine.create(spec)
        image = await frozen.freeze()
        graded = SandboxSpec(image=image, limits=spec.limits, run_id="killed")
        print((await engine.create(graded)).id, frozen.id, image, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@docker
async def test_what_a_killed_process_leaves_is_reaped(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as mine:
        command = [sys.executable, "-c", OWNER, await base_image(engine)]
        async with await anyio.open_process(command, cwd=Path.cwd()) as owner:
            assert owner.stdout is not None
            *left, image = (await owner.stdout.receive()).decode().split()
            owner.send_signal(signal.SIGKILL)
        assert set(left) <= {record.sandbox_id for record in await engine.inventory()}
        async with open_docker():
            pass  # a sandbox still stands on the dead owner's image
        reaped = await reap(engine, now=time.time())
        assert set(left) <= {record.sandbox_id for record in reaped.removed}
        assert reaped.failed == ()
        assert mine.id in {record.sandbox_id for record in await engine.inventory()}
        async with open_docker() as later:
            with pytest.raises(EngineFault):
                await later.create(SandboxSpec(image=image))


@docker
async def test_lost_event_stream_is_taken_up_again(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine, limits=Limits(lifetime_s=4.0)) as sandbox:
        for connections in list(engine._client._connector._acquired):  # type: ignore[union-attr]
            connections.close()
        with anyio.fail_after(40), pytest.raises(SandboxLost, match="lifetime"):
            await sandbox.exec(["bash", "-c", "exec >&- 2>&-; sleep 600"])


@docker
async def test_base_environment_can_be_exported_by_the_engine(open_docker: OpenEngine, tmp_path: Path) -> None:
    async with open_docker() as engine:
        name = await engine._base_image()
    tar = tmp_path / "base.tar"
    await export_base(tar, f"FROM {name}\nRUN echo hello > /hello\n")
    listed = await anyio.run_process(["tar", "--extract", "--to-stdout", "--file", str(tar), "hello"])
    assert listed.stdout == b"hello\n"


@docker
async def test_without_a_registry_the_export_tells_the_remedy(docker: None, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="mmdebstrap"):
        await export_base(tmp_path / "base.tar", "FROM localhost:1/debian:x\nRUN true\n")


async def test_probe_tells_why_an_engine_cannot_be_used(tmp_path: Path) -> None:
    missing = f"unix://{tmp_path}/none.sock"
    assert missing in str(await probe(missing))
    assert "neither a unix socket" in str(await probe("https://somewhere"))


async def test_engine_that_does_not_answer_is_a_fault() -> None:
    with pytest.raises(EngineFault, match=r"listing failed: no answer within 0\.01 s"), answering("listing", 0.01):
        await anyio.sleep_forever()


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[str]:
    """The address of an engine that answers what is asked on entering, and nothing after that."""

    async def answer(request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if name not in ("version", "json"):
            await anyio.sleep_forever()
        return web.json_response({"ApiVersion": "1.41"} if name == "version" else [])

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    yield f"unix://{tmp_path}/engine.sock"
    await runner.cleanup()


async def test_an_engine_that_hangs_holds_nobody_up_who_leaves(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_base(_packages: tuple[str, ...]) -> NoReturn:
        raise NotImplementedError

    monkeypatch.setattr("sandbox.docker.sandbox.REMOVE_S", 0.2)
    monkeypatch.setattr("sandbox.docker.engine._LEAVE_S", 0.2)
    with anyio.fail_after(20):
        async with DockerEngine(base=no_base, url=hanging) as engine:
            engine._sandboxes.add("left")
            facts = ImageFacts(env={}, workdir="")
            made = {"client": engine._client, "watch": engine._watch, "tasks": engine._tasks}
            container = Container("held", SandboxSpec(image="x"), facts, **made)
            async with DockerSandbox(engine, container):
                pass


async def test_leaving_by_an_exception_raises_that_exception(open_docker: OpenEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_docker():
            raise ZeroDivisionError
