"""`termloom doctor`: what this machine offers, what a run as configured needs, and what to do where the two differ.

Invariants:
- A finding says three things: the limit that was looked for, the value that was found, and the remedy when the two do
  not fit.
- A check only looks: it starts no sandbox, builds nothing, and what it writes (a probe of the state directory) it
  removes. One model call is made when an endpoint is configured, since nothing else shows that key and model are right.
- A check that itself breaks is a finding, never the end of the examination.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec

from runtime.options import Common
from runtime.plain_text import printable
from runtime.settings import Settings

Level = Literal["ok", "note", "warning", "failure"]

CHECK_S = 30.0
"""No check may take longer."""
SESSION_MB = 12
"""Resident memory of one idle sandbox with its shell, without what the agent starts in it."""
SESSION_DESCRIPTORS = 4
DISK_FREE_MB = 4096
"""Base environment, layers of builds and the store of a long run."""
POOL_RESERVE = 4
"""Networks that a person starts beside us without thinking of it: a compose project takes one or two."""
_EVENT_LOOP_DESCRIPTORS = 256


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found."""

    check: str
    level: Level
    limit: str
    """What is needed, or looked for."""
    value: str
    """What is there."""
    remedy: str = ""


Check = Callable[[Settings], Awaitable[list[Finding]]]


async def doctor(*, sessions: int | None = None, common: Common = Common()) -> int:
    """Examine this machine: engines, limits, disk, memory, endpoint, bus, GPU.

    Args:
        sessions: How many sandboxes at once the machine should bear; the limit `run` otherwise.
    """
    settings = common.settings(options={"limits.run": sessions})
    if common.dry_run:
        return common.show(settings)
    return show_findings(await examine(settings), as_json=common.json)


async def examine(settings: Settings) -> list[Finding]:
    """All findings, in the order of the checks, which run at once."""
    found: dict[str, list[Finding]] = {}

    async def work(name: str, check: Check) -> None:
        found[name] = await _examined(name, check, settings)

    async with anyio.create_task_group() as group:
        for name, check in CHECKS.items():
            group.start_soon(work, name, check)
    return [finding for name in CHECKS for finding in found[name]]


def show_findings(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print them; 1 when anything is a failure."""
    failed = any(finding.level == "failure" for finding in findings)
    if as_json:
        lines = {"kind": "result", "findings": msgspec.to_builtins(findings)}
        sys.stdout.write(json.dumps(lines, ensure_ascii=False) + "\n")
        return int(failed)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        value = printable(finding.value)
        sys.stdout.write(f"{finding.level:8} {finding.check:{width}}  {value} (looked for: {finding.limit})\n")
        if finding.remedy:
            sys.stdout.write(f"{'':8} {'':{width}}  -> {finding.remedy}\n")
    return int(failed)


async def _examined(name: str, check: Check, settings: Settings) -> list[Finding]:
    try:
        with anyio.fail_after(CHECK_S):
            return await check(settings)
    except TimeoutError:
        value, remedy = f"no answer within {CHECK_S:g} s", "See whether the service behind it hangs"
    except Exception as error:
        value, remedy = f"the check broke: {error}", "Report it with the output of this command"
    return [Finding(check=name, level="warning", limit="an answer", value=value, remedy=remedy)]


async def _engines(settings: Settings) -> list[Finding]:
    from sandbox.docker import DockerEngine
    from sandbox.namespace.engine import NamespaceEngine

    docker = await DockerEngine.probe(settings.sandbox.docker_url or None)
    namespace = await anyio.to_thread.run_sync(NamespaceEngine.probe)
    wanted = settings.sandbox.engine
    refusals = {"docker": docker, "namespace": namespace}
    usable = [name for name, reason in refusals.items() if reason is None]
    enough = wanted in usable or (wanted == "auto" and bool(usable))
    remedies = {
        "docker": "Start Docker, or point sandbox.docker_url at an engine that this user may use",
        "namespace": "Run as root on Linux with overlayfs and cgroups",
    }
    findings = []
    for name, reason in refusals.items():
        level: Level = "ok" if reason is None else "note" if enough else "failure"
        value, remedy = ("it answers", "") if reason is None else (reason, remedies[name])
        findings.append(Finding(check=f"engine {name}", level=level, limit="usable", value=value, remedy=remedy))
    return findings


async def _cgroups(_: Settings) -> list[Finding]:
    """Read only: a controller is usable where its hierarchy is mounted and writable."""
    base = Path("/sys/fs/cgroup")
    unified = (base / "cgroup.controllers").exists()
    if unified:
        usable = set((base / "cgroup.controllers").read_text().split())
    else:
        usable = (
            {path.name for path in base.iterdir() if path.is_dir() and os.access(path, os.W_OK)}
            if base.is_dir()
            else set()
        )
    missing = sorted({"memory", "pids", "cpu"} - usable)
    return [
        Finding(
            check="cgroups",
            level="warning" if missing else "ok",
            limit="memory, pids and cpu can be limited",
            value=f"version {2 if unified else 1}, " + (f"without {', '.join(missing)}" if missing else "all three"),
            remedy="Mount these controllers writable; until then the daemonless engine cannot limit them"
            if missing
            else "",
        )
    ]


async def _address_pools(settings: Settings) -> list[Finding]:
    """Of the Docker engine: a network that cannot be made is the first thing to fail beside many containers."""
    from sandbox.docker.pools import address_pools
    from sandbox.errors import EngineFault, EngineUnavailable

    if settings.sandbox.engine == "namespace":
        return []
    limit = f"{POOL_RESERVE} free subnets for what runs beside the sandboxes, which take none"
    try:
        pools = await address_pools(settings.sandbox.docker_url or None)
    except (EngineFault, EngineUnavailable):
        return [Finding(check="address pools", level="ok", limit=limit, value="no Docker engine answers: none is used")]
    level: Level = "failure" if not pools.free else "warning" if pools.free < POOL_RESERVE else "ok"
    return [
        Finding(
            check="address pools",
            level=level,
            limit=limit,
            value=f"{pools.free} free of {pools.subnets}, with {pools.networks} networks",
            remedy=""
            if level == "ok"
            else "docker network prune, or add default-address-pools of smaller subnets to the engine's daemon.json",
        )
    ]


async def _descriptors(settings: Settings) -> list[Finding]:
    need = settings.limits.run * SESSION_DESCRIPTORS + settings.limits.chat + _EVENT_LOOP_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    short = soft != resource.RLIM_INFINITY and soft < need
    return [
        Finding(
            check="descriptors",
            level="failure" if short else "ok",
            limit=f"{need} for {settings.limits.run} sessions and {settings.limits.chat} calls",
            value=f"{soft} (hard limit {hard})",
            remedy=f"ulimit -n {need}, or set limits.run lower" if short else "",
        )
    ]


async def _daemon_descriptors(settings: Settings) -> list[Finding]:
    """Of the Docker daemon: one that has used them up can no longer remove what it made."""
    from sandbox.docker.descriptors import EACH_SESSION, daemon_descriptors

    if settings.sandbox.engine == "namespace":
        return []
    found = daemon_descriptors(settings.sandbox.docker_url or None)
    if found is None:
        return []
    need = settings.limits.run * EACH_SESSION
    short = found.limit - found.used < need
    return [
        Finding(
            check="descriptors of the Docker daemon",
            level="failure" if short else "ok",
            limit=f"{need} for {settings.limits.run} sessions",
            value=f"{found.limit - found.used} left of {found.limit}",
            remedy="Raise LimitNOFILE of its service, or set limits.run lower" if short else "",
        )
    ]


async def _processes(settings: Settings) -> list[Finding]:
    need = settings.limits.run * 4
    have = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    used = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    short = have - used < need
    return [
        Finding(
            check="processes",
            level="failure" if short else "ok",
            limit=f"{need} for {settings.limits.run} sessions",
            value=f"{have - used} left of {have}",
            remedy=f"sysctl kernel.pid_max={have + need}, or set limits.run lower" if short else "",
        )
    ]


async def _disk(settings: Settings) -> list[Finding]:
    findings = []
    for name in ("state", "cache"):
        path: Path = getattr(settings.paths, name)
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        free_mb = shutil.disk_usage(there).free >> 20
        short = free_mb < DISK_FREE_MB
        findings.append(
            Finding(
                check=f"disk for {name}",
                level="warning" if short else "ok",
                limit=f"{DISK_FREE_MB} MB free at {path}",
                value=f"{free_mb} MB",
                remedy=f"Free space there, or set paths.{name} elsewhere" if short else "",
            )
        )
    return findings


async def _bases(settings: Settings) -> list[Finding]:
    from sandbox.base import SERVICE_PACKAGES
    from sandbox.basebuild import base_digest

    bases = (("base", (), "a minute and 0.6 GB"), ("base with services", SERVICE_PACKAGES, "two minutes and 1.1 GB"))
    found = list[Finding]()
    for what, packages, cost in bases:
        made = (settings.paths.cache / "base" / base_digest(packages)).is_dir()
        value = "made" if made else f"not made yet: takes about {cost}"
        found.append(Finding(check=what, level="ok" if made else "note", limit="made when needed", value=value))
    return found


async def _state(settings: Settings) -> list[Finding]:
    """A store is made, committed to and removed: shows what mode bits and mount options do not."""
    from runtime.errors import StoreError
    from runtime.store import Store

    probe = settings.paths.state / f".doctor-{os.getpid()}" / "store.sqlite"
    level: Level
    try:
        before = time.monotonic()
        async with Store(probe) as store:
            await store.open_run("doctor", command="doctor", settings="{}")
        level, value, remedy = "ok", f"a transaction in {(time.monotonic() - before) * 1000:.0f} ms", ""
    except StoreError as error:
        level, value, remedy = "failure", error.reason, error.remedy
    finally:
        shutil.rmtree(probe.parent, ignore_errors=True)
    return [
        Finding(
            check="store",
            level=level,
            limit=f"SQLite in WAL mode at {settings.paths.state}",
            value=value,
            remedy=remedy,
        )
    ]


async def _memory(settings: Settings) -> list[Finding]:
    sessions, each_mb = settings.limits.run, settings.sandbox.limits.memory_mb
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available_mb = int(fields["MemAvailable"].split()[0]) >> 10
    idle_mb, most_mb = sessions * SESSION_MB, sessions * each_mb
    level: Level
    if available_mb < idle_mb:
        level, remedy = "failure", f"Set limits.run to {max(1, available_mb // SESSION_MB)} or lower"
    elif available_mb < most_mb:
        level, remedy = "note", f"Should all of them use their limit at once, only {available_mb // each_mb} fit"
    else:
        level, remedy = "ok", ""
    return [
        Finding(
            check="memory",
            level=level,
            limit=f"{idle_mb} MB for {sessions} idle sessions, {most_mb} MB for all at their limit",
            value=f"{available_mb} MB available",
            remedy=remedy,
        )
    ]


async def _endpoint(settings: Settings) -> list[Finding]:
    from runtime.chat.client import ChatClient
    from runtime.chat.client import ChatSettings as ClientSettings
    from runtime.chat.messages import ChatMessage, ChatRequest
    from runtime.errors import ChatError

    chat = settings.chat
    limit = "one call answered"
    if not (chat.base_url and chat.model):
        return [Finding(check="endpoint", level="note", limit=limit, value="none is set (chat.base_url, chat.model)")]
    client = ChatClient(
        base_url=chat.base_url,
        api_key=chat.api_key.get_secret_value() or "none",
        model=chat.model,
        settings=ClientSettings(deadline_s=CHECK_S / 2),
    )
    request = ChatRequest(
        messages=(ChatMessage(role="user", content="Say ok."),), max_tokens=16, purpose="doctor", nonce=str(time.time())
    )
    before = time.monotonic()
    try:
        async with client:
            completion = await client.complete(request)
    except ChatError as error:
        remedy = "Check chat.base_url, chat.model and chat.api_key"
        return [Finding(check="endpoint", level="failure", limit=limit, value=str(error), remedy=remedy)]
    took = f"{time.monotonic() - before:.1f} s, {completion.prompt_tokens}+{completion.completion_tokens} tokens"
    return [Finding(check="endpoint", level="ok", limit=limit, value=f"{chat.model} at {chat.base_url}: {took}")]


async def _token_ids(settings: Settings) -> list[Finding]:
    """A policy is trained on the very tokens it sampled: the endpoint must take ids as they are and give ids back."""
    base_url, limit = settings.chat.base_url, "token ids come back as they were sent"
    if not base_url:
        return [Finding(check="token ids", level="note", limit=limit, value="no endpoint is set (chat.base_url)")]
    root, key = base_url.rstrip("/").removesuffix("/v1"), settings.chat.api_key.get_secret_value()
    sent = [1, 2, 3]
    body = {
        "input_ids": sent,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
    }
    try:
        meta = (await anyio.to_thread.run_sync(_post_json, f"{root}/generate", body, key))["meta_info"]
        echoed = [pair[1] for pair in meta["input_token_logprobs"]]
        sampled = [int(pair[1]) for pair in meta["output_token_logprobs"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        value = f"no native /generate at {root} ({error}): good for generation, not for training"
        return [Finding(check="token ids", level="note", limit=limit, value=value)]
    if echoed != sent or len(sampled) != 1:
        value, remedy = f"{sent} came back as {echoed}", "Serve the policy with a server that takes token ids"
        return [Finding(check="token ids", level="failure", limit=limit, value=value, remedy=remedy)]
    return [Finding(check="token ids", level="ok", limit=limit, value=f"{sent} echoed, {sampled} sampled")]


def _post_json(url: str, body: object, key: str) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  (the user's own endpoint)
    try:
        with urllib.request.urlopen(request, timeout=CHECK_S / 2) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        refused.close()  # it is the answer as well, and holds the connection
        raise


async def _bus(settings: Settings) -> list[Finding]:
    """One message there and back, over the bus that is configured."""
    from runtime.bus.open import open_bus
    from runtime.bus.protocol import QueueOptions
    from runtime.errors import UserError

    url = settings.daemon.bus
    before = time.monotonic()
    try:
        async with open_bus(url, prefix="doctor") as bus:
            await bus.declare("ping", QueueOptions(capacity=64))
            await bus.publish("ping", b"ping", key=secrets.token_hex(8))  # a key of old would be a repetition
            async with bus.consume("ping", slots=1) as deliveries:
                delivery = await anext(deliveries)
                await delivery.ack()
    except UserError as error:
        return [Finding(check="bus", level="failure", limit=url, value=error.problem, remedy=error.remedy)]
    took = f"a message there and back in {(time.monotonic() - before) * 1000:.1f} ms"
    return [Finding(check="bus", level="ok", limit=url or "in memory", value=took)]


async def _gpu(_: Settings) -> list[Finding]:
    limit = "for training and serving only"
    if shutil.which("nvidia-smi") is None:
        return [Finding(check="gpu", level="note", limit=limit, value="none: small policies run on the processor")]
    listed = await anyio.run_process(
        ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"],
        check=False,
        stderr=subprocess.STDOUT,
    )
    text = "; ".join(listed.stdout.decode(errors="replace").strip().splitlines())
    if listed.returncode:
        return [Finding(check="gpu", level="warning", limit=limit, value=text, remedy="Check the driver")]
    return [Finding(check="gpu", level="ok", limit=limit, value=text)]


CHECKS: dict[str, Check] = {
    "engines": _engines,
    "cgroups": _cgroups,
    "address pools": _address_pools,
    "descriptors": _descriptors,
    "daemon descriptors": _daemon_descriptors,
    "processes": _processes,
    "memory": _memory,
    "disk": _disk,
    "bases": _bases,
    "store": _state,
    "endpoint": _endpoint,
    "token ids": _token_ids,
    "bus": _bus,
    "gpu": _gpu,
}
