"""What `sandbox.engine` promises of an engine, one check a promise.

A check takes an engine and an image with bash and Python (the base environment will do), raises `ContractBrokenError`
with what was seen, and leaves nothing behind. `ENGINE_CHECKS` lists them all.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio

from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Engine, Sandbox
from sandbox.errors import EngineFault, ImageMissing, SandboxLost, TransferRefused
from sandbox.spec import AGENT_HOME, AGENT_UID, BuildContext, File, Limits, Profile, SandboxSpec
from sandbox.trusted import trusted_argv

RUN_ID = "conformance"
_LIMITS = Limits(memory_mb=512, pids=128, disk_mb=128, lifetime_s=300.0)
_SETTLE_S = 45.0
"""How long something that must happen by itself may take."""


class ContractBrokenError(Exception):
    """An engine does not do what it promises."""


def expect(met: bool, promise: str, seen: object) -> None:
    if not met:
        raise ContractBrokenError(f"{promise}; seen: {seen!r}")


@asynccontextmanager
async def _started(
    engine: Engine, image: str, profile: Profile = Profile.AGENT, limits: Limits = _LIMITS
) -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(image=image, profile=profile, limits=limits, run_id=RUN_ID, purpose="engine check")
    async with await engine.create(spec) as sandbox:
        yield sandbox


async def exec_tells_streams_and_exit_codes_apart(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        result = await sandbox.exec(["bash", "-c", "cat; echo err >&2; exit 7"], stdin=b"in\0put")
        expect((result.exit_code, result.stdout, result.stderr) == (7, b"in\0put", b"err\n"), "code, out, err", result)
        result = await sandbox.exec(["bash", "-c", "kill -9 $$"])
        expect(result.exit_code == 137, "128 + signal", result)


async def exec_ends_at_its_time_out(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        started = time.monotonic()
        result = await sandbox.exec(["bash", "-c", "echo a; sleep 61"], timeout_s=1.0)
        expect(result.timed_out and result.exit_code is None, "timed_out and no exit code", result)
        expect(time.monotonic() - started < _SETTLE_S, "it returns", result)
        look = "while cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'sleep 6[1]'; do :; done 2>/dev/null"
        left = await sandbox.exec(["bash", "-c", look], timeout_s=_SETTLE_S)
        expect(left.exit_code == 0, "nothing is left of it", left)


async def exec_keeps_output_within_its_limit(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        result = await sandbox.exec(["bash", "-c", "head -c 3000000 /dev/zero"], output_limit=1000)
        expect(len(result.stdout) == 1000 and result.truncated and result.exit_code == 0, "cut, and told", result)


async def agent_has_no_privileges(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        result = await sandbox.exec(["bash", "-c", "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status"])
        wanted = [f"{AGENT_UID}", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
        expect(result.stdout.decode().split() == wanted, "uid, no capability, no new privileges", result.stdout)


async def no_network_by_default(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        result = await sandbox.exec(["bash", "-c", "cat /proc/net/dev | tail -n +3 | cut -d: -f1"])
        expect(set(result.stdout.split()) <= {b"lo"}, "no interface but lo", result.stdout)


async def files_arrive_and_return(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        data = bytes(range(256)) * 100
        await sandbox.put(
            [
                File(path="/opt/new/deep/file", data=data, mode=0o640),
                File(path=f"{AGENT_HOME}/sub/mine", data=b"", mode=0o700, owner="agent"),
            ]
        )
        stat = await sandbox.exec(["stat", "-c", "%a %u", "/opt/new/deep/file", f"{AGENT_HOME}/sub/mine"], user="root")
        expect(stat.stdout.split() == [b"640", b"0", b"700", b"1000"], "mode and owner", stat)
        expect(await sandbox.get("/opt/new/deep/file") == data, "get gives what put placed", "other bytes")
        mine = await sandbox.exec(["touch", f"{AGENT_HOME}/sub/other"])
        expect(mine.exit_code == 0, "made directories are their owner's", mine)


async def get_takes_regular_files_alone(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        await sandbox.exec(["bash", "-c", "cd /tmp; mkfifo pipe; mkdir dir; ln -s /etc/passwd link; echo abc > file"])
        for name in ("pipe", "dir", "none", "file/none"):
            content = await sandbox.get(f"/tmp/{name}")  # noqa: S108 - inside the sandbox
            expect(content is None, f"nothing for {name}", content)
        try:
            content = await sandbox.get("/tmp/file", max_bytes=3)  # noqa: S108 - inside the sandbox
        except TransferRefused:
            return
        expect(False, "TransferRefused beyond max_bytes", content)


async def spawn_ends_with_its_process(engine: Engine, image: str) -> None:
    """A child that holds the streams open does not delay the end. Seen through a session, as nothing else spawns."""
    async with _started(engine, image) as sandbox:
        session = await sandbox.open_session()
        with anyio.fail_after(_SETTLE_S):
            result = await session.run("sleep 61 & exit 5", timeout_s=_SETTLE_S)
        expect(result.exit_code == 5 and result.shell_restarted, "the shell's own code at once", result)
        await session.aclose()


async def freeze_stops_everything_and_keeps_the_files(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        session = await sandbox.open_session()
        await session.run("echo kept > ~/kept; (while :; do echo x >> ~/ticks; sleep 0.05; done) > /dev/null 2>&1 &")
        frozen = await sandbox.freeze()
        await _expect_lost(sandbox, "a frozen sandbox cannot run")
        await session.aclose()
    try:
        async with _started(engine, frozen) as fork, _started(engine, frozen) as other:
            await fork.exec(["bash", "-c", "echo changed > ~/kept"])
            kept = await other.get(f"{AGENT_HOME}/kept")
            expect(kept == b"kept\n", "forks share the frozen files and not their changes", kept)
            ticks = [await other.get(f"{AGENT_HOME}/ticks"), await other.get(f"{AGENT_HOME}/ticks")]
            expect(ticks[0] == ticks[1], "no process came along", ticks)
    finally:
        await engine.remove_image(frozen)
        await engine.remove_image(frozen)


async def grading_trusts_nothing_of_the_agent(engine: Engine, image: str) -> None:
    plant = "for p in /tests /logs /etc/ld.so.preload; do ln -s /home/agent $p; done; mkdir -p /.termloom/bin"
    async with _started(engine, image) as sandbox:
        await sandbox.exec(["bash", "-c", plant], user="root")
        frozen = await sandbox.freeze()
    try:
        async with _started(engine, frozen, Profile.GRADE) as sandbox:
            left = await sandbox.exec(["bash", "-c", "ls -d /tests /logs /etc/ld.so.preload"], user="root")
            expect(left.stdout == b"", "no /tests, /logs, /etc/ld.so.preload of the agent's", left)
            python = await sandbox.exec([*trusted_argv(), "-c", "import pytest, sys; print(sys.prefix)"], user="root")
            expect(python.stdout.startswith(b"/.termloom"), "the trusted interpreter runs", python)
    finally:
        await engine.remove_image(frozen)


async def a_sandbox_is_listed_until_it_is_removed(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        records = {record.sandbox_id: record for record in await engine.inventory()}
        expect(sandbox.id in records, "it is listed", records)
        expect(records[sandbox.id].run_id == RUN_ID, "with its run", records[sandbox.id])
        await engine.remove(sandbox.id)
        await engine.remove(sandbox.id)
        await _expect_lost(sandbox, "a removed sandbox cannot run")
        records = {record.sandbox_id: record for record in await engine.inventory()}
        expect(sandbox.id not in records, "it is listed no more", records)
        await sandbox.remove()


async def a_session_tells_that_its_sandbox_is_lost(engine: Engine, image: str) -> None:
    async with _started(engine, image) as sandbox:
        session = await sandbox.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.remove, sandbox.id)
            try:
                result = await session.run("sleep 61", timeout_s=_SETTLE_S)
            except SandboxLost:
                return
            finally:
                await session.aclose()
        expect(False, "SandboxLost while a command runs", result)


async def a_sandbox_ends_by_itself(engine: Engine, image: str) -> None:
    async with _started(engine, image, limits=Limits(lifetime_s=2.0)) as sandbox:
        try:
            result = await sandbox.exec(["sleep", "61"], timeout_s=_SETTLE_S)
        except SandboxLost:
            return
        expect(False, "SandboxLost at the end of its lifetime", result)


async def an_image_that_a_sandbox_stands_on_is_not_taken_away(engine: Engine, _image: str) -> None:
    context = BuildContext(dockerfile=f"{BASE_DOCKERFILE}RUN echo below > /below\n")
    built = await engine.build(context)
    async with _started(engine, built.image) as sandbox:
        with suppress(EngineFault):
            await engine.remove_image(built.image)
        below = await sandbox.exec(["cat", "/below"])
        expect(below.stdout == b"below\n", "the sandbox keeps its files", below)
    await engine.remove_image(built.image)
    await _expect_missing(engine, built.image)


async def an_unknown_image_is_told(engine: Engine, image: str) -> None:
    await _expect_missing(engine, f"{image}-that-is-not-there")


async def _expect_missing(engine: Engine, image: str) -> None:
    try:
        async with _started(engine, image):
            pass
    except ImageMissing as missing:
        expect(missing.image == image, "ImageMissing names the image", missing.image)
        return
    expect(False, "ImageMissing", "a sandbox")


async def _expect_lost(sandbox: Sandbox, promise: str) -> None:
    try:
        result = await sandbox.exec(["true"])
    except SandboxLost:
        return
    expect(False, f"SandboxLost: {promise}", result)


Check = Callable[[Engine, str], Awaitable[None]]
ENGINE_CHECKS: dict[str, Check] = {
    check.__name__.replace("_", " "): check
    for check in (
        exec_tells_streams_and_exit_codes_apart,
        exec_ends_at_its_time_out,
        exec_keeps_output_within_its_limit,
        agent_has_no_privileges,
        no_network_by_default,
        files_arrive_and_return,
        get_takes_regular_files_alone,
        spawn_ends_with_its_process,
        freeze_stops_everything_and_keeps_the_files,
        grading_trusts_nothing_of_the_agent,
        a_sandbox_is_listed_until_it_is_removed,
        a_session_tells_that_its_sandbox_is_lost,
        a_sandbox_ends_by_itself,
        an_image_that_a_sandbox_stands_on_is_not_taken_away,
        an_unknown_image_is_told,
    )
}


async def run_engine_check(engine: Engine, image: str, name: str) -> list[str]:
    """Run one check. The problems found; none when the promise holds."""
    try:
        await ENGINE_CHECKS[name](engine, image)
    except ContractBrokenError as error:
        return [str(error)]
    return []
