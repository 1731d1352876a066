"""The engine as a whole: crashes, leftovers, many at once."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from sandbox.errors import EngineFault, EngineUnavailable, SandboxLost
from sandbox.namespace.engine import NamespaceEngine
from sandbox.namespace.leases import Leases
from sandbox.owner import owner_is_alive, owner_token
from sandbox.spec import File, Limits, Profile, SandboxSpec

pytestmark = [pytest.mark.namespace, pytest.mark.timeout(180)]

VICTIM = """
import anyio, json, os, sys, time
from pathlib import Path
from sandbox.namespace.engine import NamespaceEngine
from sandbox.spec import SandboxSpec

async def main():
    async with NamespaceEngine(state_dir=Path(sys.argv[1]), rootfs=Path(sys.argv[2]), trusted=None) as engine:
        spec = SandboxSpec(image=engine.images.base.id)
        sandboxes = [await engine.create(spec) for _ in range(3)]
        sandboxes.append(await engine.open_for_build(spec, engine.images.base))
        processes = [await sandbox.spawn(["sleep", "1000"], env={}, cwd="/") for sandbox in sandboxes]
        await sandboxes[0].freeze()
        ids = [sandbox.id for sandbox in sandboxes]
        holder = os.fork() if "fork" in sys.argv else -1
        if holder == 0:
            os.close(1)
            time.sleep(1000)
        print(json.dumps({"spawner": engine._link._process.pid, "ids": ids, "holder": holder}), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 30)[0], "the process does not end"
    os.close(descriptor)


def start_victim(state_dir: Path, rootfs: Path, *options: str) -> tuple[subprocess.Popen[bytes], dict]:
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, state_dir, rootfs, *options], stdout=subprocess.PIPE)
    return victim, json.loads(victim.stdout.readline())


def test_killing_the_engine_process_leaves_nothing(state_dir, rootfs, namespace_groups):
    victim, started = start_victim(state_dir, rootfs)
    inside = {pid for name in started["ids"] for pid in namespace_groups.processes(name)}
    assert len(inside) == 6
    victim.kill()
    victim.communicate()
    wait_for_end(started["spawner"])
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert not namespace_groups.names() & set(started["ids"])
    assert list((state_dir / "sandboxes").iterdir()) == []
    assert list((state_dir / "images").iterdir()) == []
    assert str(state_dir) not in Path("/proc/self/mountinfo").read_text()


async def test_what_a_double_crash_leaves_is_cleared_by_the_next_engine(state_dir, rootfs, namespace_groups):
    victim, started = start_victim(state_dir, rootfs)
    inside = {pid for name in started["ids"] for pid in namespace_groups.processes(name)}
    victim.send_signal(signal.SIGSTOP)
    os.kill(started["spawner"], signal.SIGKILL)
    for pid in inside:
        wait_for_end(pid)
    victim.kill()
    victim.communicate()
    assert namespace_groups.names() >= set(started["ids"][1:])
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as engine:
        assert await engine.inventory() == []
        assert not namespace_groups.names() & set(started["ids"])
        assert list((state_dir / "images").iterdir()) == []


async def test_half_a_lease_goes_when_its_writer_is_gone_and_not_before(state_dir, rootfs):
    here, pid, ticks = owner_token().split(":")
    owners = {"a": owner_token(), "b": f"{here}:{pid}:{int(ticks) - 1}"}
    ours, theirs = (state_dir / "sandboxes" / f"{name}.of-{owner}.new" for name, owner in owners.items())
    ours.parent.mkdir(parents=True)
    ours.write_bytes(b"{")
    theirs.write_bytes(b"{")
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None):
        assert (ours.exists(), theirs.exists()) == (True, False)


@pytest.mark.parametrize("torn", [b"", b'{"sandbox_id": "dead', bytes(64)], ids=["empty", "cut", "zeros"])
async def test_a_lease_that_a_power_cut_tore_is_cleared_like_any_other(state_dir, rootfs, torn):
    (state_dir / "sandboxes").mkdir(parents=True)
    (state_dir / "sandboxes" / "dead.json").write_bytes(torn)
    assert Leases(state_dir / "sandboxes").all() == []
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as engine:
        assert engine.notes == engine._link.notes
        assert list((state_dir / "sandboxes").iterdir()) == []


async def test_a_dead_spawner_loses_every_sandbox_and_faults_every_call(namespace_engine, state_dir):
    sandbox = await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id))
    process = await sandbox.spawn(["sleep", "1000"], env={}, cwd="/")
    namespace_engine._link._process.kill()
    with pytest.raises(SandboxLost, match="spawner"):
        await process.receive()
    with pytest.raises(SandboxLost, match="spawner"):
        await sandbox.exec(["true"])
    with pytest.raises(EngineFault, match="spawner"):
        await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id))
    await process.aclose()
    await sandbox.remove()
    assert sandbox.id not in namespace_engine._cgroups.names()
    assert list((state_dir / "sandboxes").iterdir()) == []


async def test_leaving_the_engine_removes_what_is_left(state_dir, rootfs, namespace_groups):
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as engine:
        sandbox = await engine.create(SandboxSpec(image=engine.images.base.id))
        process = await sandbox.spawn(["sleep", "1000"], env={}, cwd="/")
    with pytest.raises(SandboxLost, match="closed"):
        await process.receive()
    await process.aclose()
    await sandbox.remove()
    assert sandbox.id not in namespace_groups.names()
    assert list((state_dir / "sandboxes").iterdir()) == []


async def test_another_engine_sees_and_may_remove_what_it_does_not_own(namespace_engine, state_dir, rootfs):
    spec = SandboxSpec(image=namespace_engine.images.base.id, run_id="r1", purpose="solve 7/3")
    sandbox = await namespace_engine.create(spec)
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as other:
        (record,) = await other.inventory()
        assert (record.sandbox_id, record.engine, record.run_id, record.purpose) == (
            sandbox.id,
            "namespace",
            "r1",
            "solve 7/3",
        )
        assert owner_is_alive(record.owner)
        assert record.expires_at - record.created_at >= spec.limits.lifetime_s
        await other.remove(sandbox.id)
        await other.remove(sandbox.id)
        assert await other.inventory() == []
    with pytest.raises(SandboxLost):
        await sandbox.exec(["true"])
    await sandbox.remove()


async def test_fifty_sandboxes_at_once(namespace_engine):
    async def one(number: int) -> None:
        async with await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id)) as sandbox:
            await sandbox.put([File(path="/tmp/n", data=str(number).encode())])
            result = await sandbox.exec(["sh", "-c", "cat /tmp/n; ls /tmp"])
            assert result.stdout == f"{number}n\n".encode()
            assert await sandbox.get("/tmp/n") == str(number).encode()

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, number)
    assert await namespace_engine.inventory() == []


def descriptors(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_descriptors_stay_flat_over_two_hundred_lifecycles(namespace_engine):
    spawner = namespace_engine._link._process.pid

    async def lifecycle() -> None:
        async with await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id)) as sandbox:
            process = await sandbox.spawn(["cat"], env={}, cwd="/")
            await sandbox.put([File(path="/tmp/x", data=b"x")])
            await sandbox.get("/tmp/x")
            await process.aclose()
            await namespace_engine.remove_image(await sandbox.freeze())

    async def several() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(lifecycle)

    await several()
    before = descriptors("self"), descriptors(spawner)
    for _ in range(20):
        await several()
    assert (descriptors("self"), descriptors(spawner)) == before


async def test_a_session_that_nobody_closes_leaves_no_descriptor_once_its_sandbox_is_gone(namespace_engine):
    async def lifecycle() -> None:
        async with await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id)) as sandbox:
            session = await sandbox.open_session()
            await namespace_engine.remove(sandbox.id)
            with pytest.raises(SandboxLost):
                await session.run("true")

    await lifecycle()
    before = descriptors("self")
    for _ in range(5):
        await lifecycle()
    assert descriptors("self") == before


async def test_an_idle_session_holds_three_descriptors_here_and_one_in_the_spawner(namespace_engine):
    spawner = namespace_engine._link._process.pid
    await (await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id))).remove()
    before = descriptors("self"), descriptors(spawner)
    sandboxes = [await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id)) for _ in range(5)]
    processes = [await sandbox.spawn(["cat"], env={}, cwd="/") for sandbox in sandboxes]
    assert (descriptors("self") - before[0], descriptors(spawner) - before[1]) == (15, 5)
    for process, sandbox in zip(processes, sandboxes, strict=True):
        await process.aclose()
        await sandbox.remove()


async def test_more_requests_than_the_socket_holds_are_all_answered(namespace_engine):
    link = namespace_engine._link
    answers: list[dict] = []

    async def ask() -> None:
        answers.append(await link.request("kill", {"run": 0}))

    os.kill(link._process.pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        for _ in range(3000):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        os.kill(link._process.pid, signal.SIGCONT)
    assert len({answer["re"] for answer in answers}) == 3000


def test_a_fork_of_the_engine_process_does_not_keep_its_sandboxes_alive(state_dir, rootfs, namespace_groups):
    victim, started = start_victim(state_dir, rootfs, "fork")
    try:
        victim.kill()
        victim.communicate()
        assert Path(f"/proc/{started['holder']}").exists()
        wait_for_end(started["spawner"])
        assert not namespace_groups.names() & set(started["ids"])
    finally:
        os.kill(started["holder"], signal.SIGKILL)


async def test_a_missing_base_is_told_at_once(state_dir):
    with pytest.raises(EngineUnavailable, match="base file system"):
        async with NamespaceEngine(state_dir=state_dir, rootfs=Path("/nowhere"), trusted=None):
            pass


async def test_grading_without_a_trusted_tree_is_refused(state_dir, rootfs):
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as engine:
        with pytest.raises(EngineFault, match="trusted"):
            await engine.create(SandboxSpec(image=engine.images.base.id, profile=Profile.GRADE))
        assert await engine.inventory() == []


async def test_a_sandbox_that_cannot_start_is_a_fault_that_leaves_nothing(namespace_engine):
    for limits in (Limits(memory_mb=0), Limits(disk_mb=-1)):
        with pytest.raises(EngineFault, match="failed"):
            await namespace_engine.create(SandboxSpec(image=namespace_engine.images.base.id, limits=limits))
    assert await namespace_engine.inventory() == []


def test_probe_names_a_reason_where_namespaces_are_refused():
    program = "from sandbox.namespace.engine import NamespaceEngine; print(NamespaceEngine.probe())"
    command = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", program]
    assert (
        "unshare: Operation not permitted" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
