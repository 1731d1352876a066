"""How many sessions one event loop holds: memory for each, idle CPU of all, latency of a command.

Each session is a persistent shell in a sandbox of its own, and has run a command before anything is measured. The
floor of a command is a bare `bash` on pipes, driven by the same loop.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from bench.record import keep, table
from runtime.errors import UserError
from sandbox.base import BASE_DOCKERFILE
from sandbox.docker.client import engine_url
from sandbox.docker.descriptors import EACH_SESSION, daemon_descriptors
from sandbox.engine import Engine, Session
from sandbox.open import Choice, open_engine
from sandbox.spec import BuildContext, Limits, SandboxSpec

LIMITS = Limits(memory_mb=256, pids=64, disk_mb=64, lifetime_s=2 * 3600)


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one session takes of the machine, rounded up."""

    descriptors: int
    """In this process."""
    tasks: int
    """Processes and threads, the engine's own included."""
    memory_mib: float


NEEDS = {
    "namespace": Need(descriptors=3, tasks=3, memory_mib=2.5),
    "docker": Need(descriptors=1, tasks=17, memory_mib=8.0),
}
_SPARE_DESCRIPTORS, _SPARE_TASKS, _SPARE_MIB = 256, 2000, 1024


def require_room(engine: str, count: int, urls: Sequence[str | None] = (None,)) -> None:
    """Take all descriptors that this process may have. Raises: UserError naming the limit that `count` would break."""
    need = NEEDS[engine]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    tasks = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    limits = {
        **(_daemon_limits(count, urls) if engine == "docker" else {}),
        "open files (RLIMIT_NOFILE)": (hard, _SPARE_DESCRIPTORS + count * need.descriptors, "Raise it: ulimit -Hn"),
        "kernel.pid_max": (pid_max - tasks, _SPARE_TASKS + count * need.tasks, "sysctl -w kernel.pid_max=4194304"),
        "memory, MiB": (int(_available_mib()), math.ceil(_SPARE_MIB + count * need.memory_mib), "Open fewer sessions"),
    }
    for name, (free, wanted, remedy) in limits.items():
        if wanted > free:
            raise UserError(name, f"{count} sessions on {engine} need {wanted}, and {free} are free", remedy)


def _daemon_limits(count: int, urls: Sequence[str | None]) -> dict[str, tuple[int, int, str]]:
    wanted = _SPARE_DESCRIPTORS + math.ceil(count / len(urls)) * EACH_SESSION
    remedy = "Raise its LimitNOFILE, or spread over several engines: --docker-url unix://A --docker-url unix://B"
    found = {url: daemon_descriptors(url) for url in urls}
    return {
        f"open files of the daemon at {engine_url(url)}": (open_files.limit - open_files.used, wanted, remedy)
        for url, open_files in found.items()
        if open_files is not None
    }


def _available_mib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def _cpu_s(engine: str) -> float:
    """CPU seconds of the processes under this one; with Docker, of every container daemon and its children.

    Not this process: reading thousands of files in /proc would be most of what it spent.
    """
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    me = os.getpid()
    roots = {me}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            pid = int(entry.name)
            parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
            if engine == "docker" and name in ("dockerd", "containerd"):
                roots.add(pid)

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid in roots:
                return True
            pid = parents.get(pid, 0)
        return False

    return sum(ticks for pid, ticks in spent.items() if pid != me and ours(pid)) / os.sysconf("SC_CLK_TCK")


async def _floor_ms(rounds: int = 200) -> float:
    """Median round trip of a builtin through a bare bash on pipes."""
    process = await anyio.open_process(["bash", "--noprofile", "--norc"])
    assert process.stdin is not None
    assert process.stdout is not None
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        await process.stdin.send(b"echo x\n")
        await process.stdout.receive()
        times.append(time.perf_counter() - started)
    process.kill()
    await process.aclose()
    return statistics.median(times) * 1000


async def _open_all(engines: Sequence[Engine], image: str, count: int) -> list[Session]:
    """In turn on each engine. An image is named by what it holds: it has one name on all of them."""
    sessions: list[Session] = []
    gate = anyio.CapacityLimiter(16)

    async def one(number: int) -> None:
        async with gate:
            spec = SandboxSpec(image=image, limits=LIMITS, run_id="bench", purpose=f"session {number}")
            sandbox = await engines[number % len(engines)].create(spec)
            session = await sandbox.open_session()
            result = await session.run("echo ready", timeout_s=60)
            assert result.output == "ready\n", result
            sessions.append(session)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
    return sessions


async def _idle_percent(engine: str, idle_s: float) -> float:
    """Of one CPU, while nothing is asked of any session."""
    others, ours, started = _cpu_s(engine), time.process_time(), time.perf_counter()
    await anyio.sleep(idle_s)
    ours, spent = time.process_time() - ours, time.perf_counter() - started
    return 100 * (ours + _cpu_s(engine) - others) / spent


async def _command_ms(sessions: list[Session], rounds: int) -> tuple[float, float]:
    """p50 and p95 of `true`, one session after another."""
    times = []
    for number in range(rounds):
        session = sessions[(number * 7919) % len(sessions)]
        started = time.perf_counter()
        await session.run("true", timeout_s=60)
        times.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(times, n=20)
    return statistics.median(times), cuts[18]


async def measure(
    choice: Choice,
    counts: list[int],
    *,
    cache: Path,
    state: Path,
    urls: Sequence[str | None] = (None,),
    idle_s: float = 20.0,
    rounds: int = 300,
) -> None:
    """One row for each count, over the Docker engines at `urls`. Raises: UserError when there is no room for it."""
    rows = []
    for count in counts:
        floor_ms = await _floor_ms()
        async with AsyncExitStack() as stack:
            open_one = partial(open_engine, choice, cache=cache, state=state, progress=lambda line: None)
            engines = [await stack.enter_async_context(open_one(docker_url=url)) for url in urls]
            name = engines[0].name
            require_room(name, count, urls)
            (image,) = {(await engine.build(_context())).image for engine in engines}
            before = _available_mib()
            started = time.perf_counter()
            sessions = await _open_all(engines, image, count)
            opened = time.perf_counter() - started
            print(f"{count} sessions open after {opened:.0f} s", flush=True)
            memory = (before - _available_mib()) / count
            idle = await _idle_percent(name, idle_s)
            p50, p95 = await _command_ms(sessions, rounds)
            started = time.perf_counter()
            async with anyio.create_task_group() as group:
                for session in sessions:
                    group.start_soon(_one, session)
            rate = count / (time.perf_counter() - started)
            started = time.perf_counter()
        removed = time.perf_counter() - started
        rows.append(
            {
                "open": count,
                "start/s": count / opened,
                "MiB each": memory,
                "idle CPU %": idle,
                "p50 ms": p50,
                "p95 ms": p95,
                "floor ms": floor_ms,
                "x floor": p50 / floor_ms,
                "all at once/s": rate,
                "remove s": removed,
            }
        )
        print(table(rows[-1:]), flush=True)
    keep("sessions", rows, engine=choice, urls=[url for url in urls if url])


async def _one(session: Session) -> None:
    await session.run("/bin/true", timeout_s=120)


def _context() -> BuildContext:
    return BuildContext(dockerfile=BASE_DOCKERFILE)
