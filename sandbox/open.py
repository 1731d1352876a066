"""Opens the engine that a person asked for, or the best that this machine offers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from sandbox.basebuild import ensure_base
from sandbox.engine import Engine
from sandbox.errors import EngineUnavailable

Choice = Literal["auto", "docker", "namespace"]

_DOCKER_REMEDY = "Start Docker, or point DOCKER_HOST at an engine that this user may use."
_NAMESPACE_REMEDY = "Run as root on Linux with cgroups and overlayfs for the daemonless engine."


@asynccontextmanager
async def open_engine(
    choice: Choice, *, cache: Path, state: Path, progress: Callable[[str], None], docker_url: str | None = None
) -> AsyncIterator[Engine]:
    """The engine, entered. `auto` takes Docker when it answers, else the daemonless one, and tells which.

    `cache` holds the base environment, `state` what the daemonless engine keeps.

    Raises: EngineUnavailable, with the reason and the remedy of each engine that was tried.
    """
    chosen = await choose_engine(choice, progress, docker_url)
    if chosen == "docker":
        async with _docker(cache, progress, docker_url) as engine:
            yield engine
    else:
        async with await _namespace(cache, state, progress) as engine:
            yield engine


async def choose_engine(
    choice: Choice, progress: Callable[[str], None], docker_url: str | None
) -> Literal["docker", "namespace"]:
    """Which engine `open_engine` takes, without opening it. Raises: EngineUnavailable."""
    refusals: dict[str, str] = {}
    if choice in ("auto", "docker"):
        from sandbox.docker import DockerEngine

        reason = await DockerEngine.probe(docker_url)
        if reason is None:
            progress("sandboxes: Docker")
            return "docker"
        refusals["docker"] = reason
    if choice in ("auto", "namespace"):
        from sandbox.namespace.engine import NamespaceEngine

        reason = NamespaceEngine.probe()
        if reason is None:
            note = f" (Docker: {refusals['docker']})" if refusals else ""
            progress(f"sandboxes: the daemonless engine{note}")
            return "namespace"
        refusals["namespace"] = reason
    remedies = {"docker": _DOCKER_REMEDY, "namespace": _NAMESPACE_REMEDY}
    raise EngineUnavailable(
        choice,
        "; ".join(f"{engine}: {reason}" for engine, reason in refusals.items()),
        " Or: ".join(remedies[engine] for engine in refusals),
    )


def _docker(cache: Path, progress: Callable[[str], None], url: str | None) -> Engine:
    from sandbox.docker import DockerEngine
    from sandbox.docker.export import export_base

    base = partial(ensure_base, cache=cache, progress=progress, otherwise=partial(export_base, url=url))
    return DockerEngine(base=base, url=url)


async def _namespace(cache: Path, state: Path, progress: Callable[[str], None]) -> Engine:
    from sandbox.namespace.engine import NamespaceEngine

    make = partial(ensure_base, cache=cache, progress=progress)
    base = await make()
    return NamespaceEngine(state_dir=state, rootfs=base.rootfs, trusted=base.trusted, more=make)
