"""One sandbox: processes, files, limits, isolation, end."""

import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from sandbox.errors import EngineFault, SandboxLost, TransferRefused
from sandbox.namespace.engine import NamespaceEngine
from sandbox.namespace.sandbox import NamespaceSandbox
from sandbox.spec import TRUSTED_DIR, File, Limits, Profile, SandboxSpec

pytestmark = [pytest.mark.namespace, pytest.mark.timeout(120)]


async def create(engine: NamespaceEngine, **changes) -> NamespaceSandbox:
    return await engine.create(SandboxSpec(**({"image": engine.images.base.id} | changes)))


async def shell(sandbox: NamespaceSandbox, script: str, **options) -> tuple[int | None, str]:
    result = await sandbox.exec(["bash", "-c", script], **options)
    return result.exit_code, (result.stdout + result.stderr).decode()


async def none_sleeps(sandbox: NamespaceSandbox) -> bool:
    """Whether no `sleep` is left; what was killed may take a moment to end."""
    return await shell(sandbox, "while pgrep -f '[s]leep 1' >/dev/null; do :; done") == (0, "")


async def test_exec_gives_both_streams_and_the_true_exit_code(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        result = await sandbox.exec(["sh", "-c", "cat; echo oops >&2; exit 7"], stdin=b"x" * 300_000)
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"x" * 300_000, b"oops\n")
        assert not result.timed_out
        assert not result.truncated


async def test_exec_keeps_no_more_than_the_limit_and_says_so(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        result = await sandbox.exec(["head", "-c", "1000000", "/dev/zero"], output_limit=1000)
        assert (len(result.stdout), result.truncated, result.exit_code) == (1000, True, 0)


async def test_a_signal_shows_as_128_and_its_number(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        assert (await shell(sandbox, "kill -TERM $$"))[0] == 128 + signal.SIGTERM


async def test_a_program_that_cannot_start_fails_as_in_a_shell(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        missing = await sandbox.exec(["no-such-program"])
        assert (missing.exit_code, missing.stderr) == (127, b"no-such-program: command not found\n")
        assert (await sandbox.exec(["/etc/passwd"])).exit_code == 126
        nowhere = await sandbox.exec(["true"], cwd="/nowhere")
        assert (nowhere.exit_code, nowhere.stderr) == (126, b"/nowhere: No such file or directory\n")


async def test_environment_is_clean_and_layered(namespace_engine):
    async with await create(namespace_engine, env={"A": "spec", "B": "spec"}) as sandbox:
        _, text = await shell(sandbox, "env", env={"B": "call"})
        pairs = dict(line.split("=", 1) for line in text.splitlines())
        assert pairs == pairs | {"HOME": "/home/agent", "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}
        assert (pairs["A"], pairs["B"], pairs["PWD"]) == ("spec", "call", "/home/agent")
        assert set(pairs) == {"A", "B", "HOME", "USER", "LANG", "TERM", "PATH", "PWD", "SHLVL", "_"}


async def test_a_process_has_its_three_streams_and_no_descriptor_of_the_spawner(namespace_engine):
    script = "import os; print([fd for fd in range(99) if os.path.exists(f'/proc/self/fd/{fd}')])"
    for profile in Profile:
        async with await create(namespace_engine, profile=profile) as sandbox:
            result = await sandbox.exec(["python3", "-c", script], user="root")
            assert result.stdout == b"[0, 1, 2]\n"


async def test_a_child_in_the_background_does_not_hold_up_exec(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        with anyio.fail_after(30):
            assert await shell(sandbox, "sleep 1000 & echo done") == (0, "done\n")


async def test_what_a_child_writes_after_the_end_is_not_waited_for(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["bash", "-c", "setsid tee /tmp/seen <&0 & echo end >&2"], env={}, cwd="/")
        assert await process.wait() == 0
        await process.send(b"late\n")
        await shell(sandbox, "until [ -s /tmp/seen ]; do sleep 0.01; done")
        assert [await process.receive(), await process.receive()] == [("err", b"end\n"), None]
        await process.aclose()


async def test_reading_can_be_cancelled_while_output_is_ready_and_none_is_lost(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["echo", "one"], env={}, cwd="/")
        assert await process.wait() == 0
        with anyio.CancelScope() as scope:
            scope.cancel()
            await process.receive()
        assert scope.cancelled_caught
        assert [await process.receive(), await process.receive()] == [("out", b"one\n"), None]
        await process.aclose()


async def test_time_out_kills_the_whole_session_of_the_process_and_leaves_the_sandbox_usable(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        script = "echo early; sleep 1000 & (sleep 1001; true) & wait"
        result = await sandbox.exec(["bash", "-c", script], timeout_s=5.0)
        assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"early\n")
        assert await none_sleeps(sandbox)


async def test_spawn_is_a_two_way_stream_that_outlives_waiting(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["cat"], env={}, cwd="/tmp")
        await process.send(b"one\n")
        assert await process.receive() == ("out", b"one\n")
        with anyio.move_on_after(0.05) as scope:
            await process.receive()
        assert scope.cancelled_caught
        await process.send(b"two\n")
        assert await process.receive() == ("out", b"two\n")
        process.close_stdin()
        assert await process.receive() is None
        assert process.status == 0
        with pytest.raises(SandboxLost):
            await process.send(b"three\n")
        await process.aclose()
        await process.aclose()


async def test_spawned_output_arrives_whole_though_larger_than_a_pipe(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["seq", "200000"], env={}, cwd="/")
        data = bytearray()
        while (chunk := await process.receive()) is not None:
            assert len(chunk[1]) <= 64 * 1024
            data += chunk[1]
        assert data.split() == [b"%d" % number for number in range(1, 200_001)]
        await process.aclose()


async def test_closing_a_spawned_process_kills_it_and_its_children(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["bash", "-c", "sleep 1000 & echo up; wait"], env={}, cwd="/")
        assert await process.receive() == ("out", b"up\n")
        await process.aclose()
        assert await none_sleeps(sandbox)


async def test_files_go_in_with_mode_and_owner_and_come_out_the_same(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        data = os.urandom(3_000_000)
        await sandbox.put(
            [
                File(path="/home/agent/new/dir/a.bin", data=data, owner="agent", mode=0o600),
                File(path="/srv/b.sh", data=b"#!/bin/sh\necho hi\n", mode=0o755),
            ]
        )
        assert await sandbox.get("/home/agent/new/dir/a.bin", max_bytes=len(data)) == data
        _, text = await shell(sandbox, "stat -c '%U %a' ~/new ~/new/dir/a.bin /srv/b.sh; /srv/b.sh")
        assert text == "agent 755\nagent 600\nroot 755\nhi\n"
        await sandbox.put([File(path="/srv/b.sh", data=b"")])
        assert await sandbox.get("/srv/b.sh") == b""


async def test_get_gives_none_for_what_is_no_regular_file(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        await shell(sandbox, "cd /tmp; mkfifo fifo; ln -s /etc/passwd link; mkdir dir; touch file")
        for path in ("/tmp/fifo", "/tmp/link", "/tmp/dir", "/tmp/nothing", "/tmp/file/below", "/dev/zero"):
            assert await sandbox.get(path) is None
        assert await sandbox.get("/tmp/file") == b""


async def test_transfers_beyond_a_limit_are_refused(namespace_engine):
    async with await create(namespace_engine, limits=Limits(disk_mb=16)) as sandbox:
        await sandbox.put([File(path="/tmp/ten", data=b"0123456789")])
        with pytest.raises(TransferRefused, match="larger than 9 bytes"):
            await sandbox.get("/tmp/ten", max_bytes=9)
        assert await sandbox.get("/tmp/ten", max_bytes=10) == b"0123456789"
        with pytest.raises(TransferRefused, match="No space left"):
            await sandbox.put([File(path="/tmp/big", data=bytes(20 << 20))])
        assert await sandbox.get("/tmp/big") is None
        with pytest.raises(TransferRefused, match="directory"):
            await sandbox.put([File(path="/tmp", data=b"")])
        for path in ("relative", "/proc/x", "/dev/x", "/tmp/../proc/x", "/tmp/\0", f"{TRUSTED_DIR}/x"):
            with pytest.raises(TransferRefused):
                await sandbox.put([File(path=path, data=b"")])


async def test_a_link_in_the_way_is_replaced_or_stays_inside(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        await shell(sandbox, "ln -s /etc/shells /tmp/link; ln -s /proc/1/root/etc /tmp/out; ln -s / /tmp/up")
        before = Path("/etc/shells").read_bytes()
        await sandbox.put([File(path="/tmp/link", data=b"agent"), File(path="/tmp/up/etc/shells", data=b"inside")])
        assert Path("/etc/shells").read_bytes() == before
        assert await sandbox.get("/tmp/link") == b"agent"
        assert await sandbox.get("/etc/shells") == b"inside"


async def test_the_agent_is_nobody_special(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        _, status = await shell(sandbox, "cat /proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["1000"] * 4
        assert fields["Groups"].split() == []
        assert {fields[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        for script in (
            "su -c id",
            "mount -t tmpfs x /tmp",
            "unshare -r id",
            "unshare -U id",
            "chroot / id",
            "dmesg",
            "mknod /tmp/disk b 254 0",
            "echo x > /etc/x",
            "echo 1 > /proc/sys/kernel/panic",
            "hostname other",
            "kill -9 1",
            "cat /proc/1/environ",
            "ls /proc/1/root/",
        ):
            code, _ = await shell(sandbox, script)
            assert code != 0, script


async def test_seccomp_refuses_namespaces_by_clone_and_answers_enosys_to_clone3(namespace_engine):
    program = (
        "import ctypes, errno, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(*args):\n"
        "    libc.syscall(*args); return errno.errorcode.get(ctypes.get_errno())\n"
        "print(call(56, 0x10000000 | 17, 0, 0, 0, 0), call(435, 0, 0), call(41, 40, 1, 0), call(101, 0, 0, 0, 0))\n"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("call numbers of x86_64")
    async with await create(namespace_engine) as sandbox:
        result = await sandbox.exec(["python3", "-c", program])
        assert result.stdout == b"EPERM ENOSYS EPERM EPERM\n", result.stderr


async def test_root_inside_has_only_what_the_profile_gives(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        _, text = await shell(
            sandbox, "id -u; grep -E 'CapEff|CapBnd' /proc/self/status; cat /home/agent/x", user="root"
        )
        assert text.splitlines()[:3] == ["0", f"CapEff:\t{'0' * 16}", f"CapBnd:\t{'0' * 16}"]
    async with await create(namespace_engine, profile=Profile.BUILD) as sandbox:
        code, text = await shell(sandbox, "chown agent /etc/shells && stat -c %U /etc/shells", user="root")
        assert (code, text) == (0, "agent\n")
        code, text = await shell(sandbox, "mknod /srv/disk b 254 0 && head -c1 /srv/disk", user="root")
        assert code == 1
        assert "Permission denied" in text
        assert (await shell(sandbox, "mknod /dev/disk b 254 0", user="root"))[0] == 1
        assert (await shell(sandbox, "mount -t tmpfs x /srv", user="root"))[0] != 0


async def test_the_host_is_out_of_sight(namespace_engine, state_dir):
    async with await create(namespace_engine) as sandbox:
        _, text = await shell(sandbox, "echo /proc/[0-9]*; hostname; cat /proc/keys; ls /sys")
        assert text.split() == ["/proc/1", "/proc/2", "sandbox"]
        _, name = await shell(sandbox, "tr -d '\\0' < /proc/1/cmdline")
        assert name in ("init", "termloom")
        _, mounts = await shell(sandbox, "cat /proc/self/mountinfo")
        assert str(state_dir) not in mounts
        assert (await shell(sandbox, f"ls {state_dir}"))[0] == 2


async def test_there_is_a_loopback_and_no_other_network(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        _, text = await shell(sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1; getent hosts localhost | wc -l")
        assert text.split() == ["lo", "1"]
        code, _ = await shell(
            sandbox,
            "python3 -m http.server 8000 >/dev/null 2>&1 & "
            "curl -s --retry 30 --retry-connrefused --retry-delay 1 localhost:8000 >/dev/null",
        )
        assert code == 0
        assert (await shell(sandbox, "curl -s -m 30 http://192.0.2.1"))[0] == 7


async def test_memory_limit_kills_the_command_and_spares_the_sandbox(namespace_engine):
    async with await create(namespace_engine, limits=Limits(memory_mb=64)) as sandbox:
        code, _ = await shell(sandbox, "exec python3 -c 'x = bytearray(500 << 20); print(len(x))'")
        assert code == 137
        assert await shell(sandbox, "echo alive") == (0, "alive\n")


async def test_pids_limit_stops_a_fork_bomb_and_spares_the_sandbox(namespace_engine):
    bomb = "import os, time\nfor n in range(100):\n    if os.fork() == 0: time.sleep(1000)\n"
    async with await create(namespace_engine, limits=Limits(pids=20)) as sandbox:
        result = await sandbox.exec(["python3", "-c", bomb])
        assert b"BlockingIOError" in result.stderr
        result = await sandbox.exec(["sh", "-c", "exec cat /proc/[0-9]*/comm"])
        assert result.stdout.split().count(b"python3") == 19


async def test_disk_limit_ends_in_no_space_left(namespace_engine):
    async with await create(namespace_engine, limits=Limits(disk_mb=8)) as sandbox:
        code, text = await shell(sandbox, "head -c 20M /dev/zero > /tmp/big")
        assert code == 1
        assert "No space left" in text
        await shell(sandbox, "rm /tmp/big")
        assert (await shell(sandbox, "echo x > /tmp/small; cat /tmp/small"))[0] == 0


async def test_cpu_limit_is_written(namespace_engine):
    if namespace_engine.notes:
        pytest.skip("no control groups here")
    async with await create(namespace_engine, limits=Limits(cpus=0.25)) as sandbox:
        groups = namespace_engine._cgroups
        directory = Path(groups.roots["cpu"]) / sandbox.id
        text = (directory / ("cpu.max" if groups.unified else "cpu.cfs_quota_us")).read_text()
        assert text.split()[0] == "25000"


async def test_the_lifetime_ends_the_sandbox_and_says_so(namespace_engine):
    async with await create(namespace_engine, limits=Limits(lifetime_s=1.0)) as sandbox:
        with pytest.raises(SandboxLost, match="lifetime"):
            await sandbox.exec(["sleep", "1000"])
        with pytest.raises(SandboxLost, match="lifetime"):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxLost, match="lifetime"):
            await sandbox.get("/etc/passwd")


async def test_a_spawned_process_learns_of_the_death_of_its_sandbox(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["cat"], env={}, cwd="/")
        first = _first_process(namespace_engine, sandbox)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxLost, match="status -9"):
            await process.receive()
        await process.aclose()


def _first_process(engine: NamespaceEngine, sandbox: NamespaceSandbox) -> int:
    return next(pid for pid in engine._cgroups.processes(sandbox.id) if _status(pid)["NSpid"].split()[-1] == "1")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)


async def test_removal_is_idempotent_and_leaves_nothing(namespace_engine, state_dir):
    sandbox = await create(namespace_engine)
    process = await sandbox.spawn(["sleep", "1000"], env={}, cwd="/")
    assert [record.sandbox_id for record in await namespace_engine.inventory()] == [sandbox.id]
    await sandbox.remove()
    await sandbox.remove()
    await namespace_engine.remove(sandbox.id)
    assert await namespace_engine.inventory() == []
    assert not any((state_dir / "sandboxes").iterdir())
    assert sandbox.id not in namespace_engine._cgroups.names()
    with pytest.raises(SandboxLost, match="removed"):
        await process.receive()
    with pytest.raises(SandboxLost, match="removed"):
        await sandbox.exec(["true"])
    await process.aclose()


async def test_remove_during_exec_is_a_lost_sandbox_for_the_caller(namespace_engine):
    sandbox = await create(namespace_engine)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(SandboxLost):
                await sandbox.exec(["sh", "-c", "touch /tmp/up; sleep 1000"])

        tasks.start_soon(run)
        while await sandbox.get("/tmp/up") is None:
            await anyio.lowlevel.checkpoint()
        await sandbox.remove()


async def test_an_unknown_image_is_refused(namespace_engine):
    with pytest.raises(EngineFault, match="no image"):
        await create(namespace_engine, image="nothing")


async def test_arguments_beyond_the_limit_are_a_fault_and_not_a_hang(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        with pytest.raises(EngineFault, match="above the limit"):
            await sandbox.exec(["echo", "x" * 300_000])
        assert (await sandbox.exec(["echo", "x" * 100_000])).exit_code == 0


async def test_a_cancelled_exec_leaves_no_process(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        for delay in (0.0, 0.001, 0.003, 0.01, 0.05):
            with anyio.move_on_after(delay):
                await sandbox.exec(["sleep", "1000"])
        assert await none_sleeps(sandbox)


async def test_a_cancelled_create_leaves_nothing(namespace_engine):
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01):
        with anyio.move_on_after(delay):
            async with await create(namespace_engine):
                pass
    assert await namespace_engine.inventory() == []
    mine = {record.sandbox_id for record in await namespace_engine.inventory()}
    assert not mine & namespace_engine._cgroups.names()


async def test_the_first_process_keeps_next_to_no_memory(namespace_engine):
    if os.uname().machine != "x86_64":
        pytest.skip("only there it becomes a program of its own")
    async with await create(namespace_engine) as sandbox:
        status = _status(_first_process(namespace_engine, sandbox))
        assert int(status["RssAnon"].split()[0]) < 100


async def test_idle_sandboxes_use_no_processor_time(namespace_engine):
    async with await create(namespace_engine) as sandbox:
        process = await sandbox.spawn(["cat"], env={}, cwd="/")
        begun = time.process_time()
        with anyio.move_on_after(0.5):
            await process.receive()
        assert time.process_time() - begun < 0.1
        await process.aclose()
