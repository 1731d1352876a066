"""Processes in a container: exit codes, streams, time-outs, death."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from sandbox.docker.process import Chunk, ContainerProcess
from sandbox.docker.sandbox import DockerSandbox
from sandbox.errors import SandboxLost
from sandbox.spec import Limits
from sandbox.transport import Duplex
from tests.sandbox.docker.conftest import OpenEngine, started

pytestmark = pytest.mark.docker


async def say(sandbox: DockerSandbox, script: str, **options: object) -> str:
    result = await sandbox.exec(["bash", "-c", script], **options)  # type: ignore[arg-type]
    return result.stdout.decode()


async def read_all(process: Duplex) -> bytes:
    read = b""
    while (chunk := await process.receive()) is not None:
        read += chunk[1]
    return read


async def read_until(process: Duplex, end: bytes) -> bytes:
    read = b""
    while not read.endswith(end):
        chunk = await process.receive()
        assert chunk is not None, read
        read += chunk[1]
    return read


async def none_left(sandbox: DockerSandbox, name: str) -> bool:
    """Whether no process of that name is left; what was killed may have to be collected yet."""
    return (await sandbox.exec(["bash", "-c", f"while pgrep -x {name} -u agent; do :; done"])).exit_code == 0


async def test_exit_code_and_both_streams_come_back(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["sh", "-c", "printf out; printf err >&2; exit 7"])
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out", b"err")
        assert not result.timed_out
        assert not result.truncated


async def test_agent_is_an_ordinary_user_in_its_home_with_a_clean_environment(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        assert (
            await say(sandbox, "id -un; pwd; echo $HOME $LANG $TERM")
            == "agent\n/home/agent\n/home/agent C.UTF-8 dumb\n"
        )
        assert await say(sandbox, "id -u; echo $HOME", user="root") == "0\n/root\n"
        assert await say(sandbox, "echo $A; pwd", env={"A": "b c"}, cwd="/tmp") == "b c\n/tmp\n"


async def test_missing_program_and_missing_directory_are_results_and_not_faults(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert (await sandbox.exec(["true"], cwd="/no/such/place")).exit_code == 126


async def test_standard_input_arrives_whole_and_ends(open_docker: OpenEngine) -> None:
    data = bytes(range(256)) * 4096
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["cat"], stdin=data, output_limit=len(data))
        assert result.stdout == data
        assert (await sandbox.exec(["cat"])).stdout == b""
        assert (await sandbox.exec(["true"], stdin=data)).exit_code == 0


async def test_flood_is_cut_at_the_limit(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["head", "-c", "8000000", "/dev/zero"], output_limit=1000)
        assert result.stdout == bytes(1000)
        assert result.truncated
        assert result.exit_code == 0


async def test_time_out_kills_the_process_and_its_daemons(open_docker: OpenEngine) -> None:
    script = "echo before; setsid sleep 971 & (sleep 972 &); sleep 973"
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["bash", "-c", script], timeout_s=5.0)
        assert result.timed_out
        assert result.exit_code is None
        assert result.stdout == b"before\n"
        assert await none_left(sandbox, "sleep")


async def test_fork_bomb_at_the_pid_limit_is_killed_by_the_time_out(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        bomb = "while :; do sleep 600 & done"
        assert (await sandbox.exec(["bash", "-c", bomb], timeout_s=1.0)).timed_out
        assert (await sandbox.exec(["true"])).exit_code == 0


async def test_child_that_keeps_the_streams_open_does_not_delay_the_end_for_long(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["sh", "-c", "sleep 600 & echo done; exit 4"], timeout_s=30.0)
        assert (result.exit_code, result.stdout) == (4, b"done\n")


async def test_program_that_closes_its_streams_is_waited_for(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        result = await sandbox.exec(["bash", "-c", "exec >&- 2>&-; sleep 1; exit 5"], timeout_s=30.0)
        assert result.exit_code == 5


async def test_process_killed_in_a_living_sandbox_is_a_result(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        assert (await sandbox.exec(["bash", "-c", "kill -9 $$"])).exit_code == 137
        assert (await sandbox.exec(["bash", "-c", "kill -9 -1"])).exit_code in (0, 137)
        assert (await sandbox.exec(["true"])).exit_code == 0


async def test_end_of_the_sandbox_is_told_to_a_running_process_and_to_the_next(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine, limits=Limits(lifetime_s=2.0)) as sandbox:
        with pytest.raises(SandboxLost, match="lifetime"):
            await sandbox.exec(["sleep", "600"])
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])


async def test_out_of_memory_kills_the_command_and_not_the_sandbox(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine, limits=Limits(memory_mb=64)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "x = bytearray(1 << 28)"])
        assert result.exit_code == 137
        assert (await sandbox.exec(["true"])).exit_code == 0


async def test_cancelled_exec_leaves_no_process(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        with anyio.move_on_after(0.5):
            await sandbox.exec(["sleep", "974"])
        assert await none_left(sandbox, "sleep")


async def test_exec_that_is_cancelled_as_it_starts_leaves_no_process(
    open_docker: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ContainerProcess._read

    async def read_and_cancel(process: ContainerProcess) -> Chunk | None:
        chunk = await read(process)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        return chunk

    async with open_docker() as engine, started(engine) as sandbox:
        with monkeypatch.context() as patch, anyio.CancelScope() as scope:
            patch.setattr(ContainerProcess, "_read", read_and_cancel)
            await sandbox.exec(["sleep", "974"])
        assert scope.cancelled_caught
        assert await none_left(sandbox, "sleep")


async def test_spawned_shell_answers_line_by_line_and_ends_by_itself(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        shell = await sandbox.spawn(["bash", "--noprofile", "--norc"], env={"GREETING": "hello"}, cwd="/tmp")
        await shell.send(b"echo $GREETING; pwd\n")
        assert await read_until(shell, b"/tmp\n") == b"hello\n/tmp\n"
        await shell.send(b"exit 3\n")
        assert await read_all(shell) == b""
        await shell.aclose()
        with pytest.raises(SandboxLost):
            await shell.send(b"more\n")


async def test_closing_a_spawned_process_kills_it(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        process = await sandbox.spawn(["sleep", "975"], env={}, cwd="/")
        assert (await say(sandbox, "until pgrep -x sleep -u agent; do :; done")).count("\n") == 1
        await process.aclose()
        await process.aclose()
        assert await none_left(sandbox, "sleep")


async def test_large_chunks_are_split_and_keep_their_order(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        process = await sandbox.spawn(["seq", "1", "60000"], env={}, cwd="/")
        read = []
        while (chunk := await process.receive()) is not None:
            assert len(chunk[1]) <= 64 * 1024
            read.append(chunk[1])
        await process.aclose()
        assert b"".join(read) == "".join(f"{n}\n" for n in range(1, 60001)).encode()


async def test_removal_under_a_spawned_process_is_a_lost_sandbox(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        process = await sandbox.spawn(["sleep", "600"], env={}, cwd="/")
        await engine.remove(sandbox.id)
        with anyio.fail_after(40), pytest.raises(SandboxLost):
            await process.receive()
        await process.aclose()


async def test_closing_a_shell_whose_child_shares_its_streams_leaves_nothing(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        process = await sandbox.spawn(["bash", "-c", "cat; true"], env={}, cwd="/")
        await process.aclose()
        assert await none_left(sandbox, "cat")


async def test_an_event_stream_that_is_opened_again_disturbs_no_process(open_docker: OpenEngine) -> None:
    async with open_docker() as engine, started(engine) as sandbox:
        process = await sandbox.spawn(["cat"], env={}, cwd="/")
        for line in (b"one\n", b"two\n"):
            for key in list(engine._watch._waiting):
                engine._watch._wake(key)
            assert await say(sandbox, "echo beside") == "beside\n"
            await process.send(line)
            assert await read_until(process, line) == line
        await process.aclose()
