"""Builds: the steps of a parsed Dockerfile, carried out in one sandbox over the base image.

All steps write to the same upper layer, which becomes the image when the last one is done. What a step does wrong is
data for the author: the instruction, the exit code, the end of its output. A step that fails on a full disk is not its
own fault: that is the engine's.

Equal builds at the same time are one: the first caller builds and the others wait for its result. When it is cancelled,
one of them takes over.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec

from sandbox.base import split_base
from sandbox.basebuild import Packages, missing_packages
from sandbox.dockerfile import Copy, DockerfileError, MakeDirectory, Recipe, Run, Step, parse
from sandbox.errors import BuildUnsupported, EngineFault, PackagesMissing, TransferRefused
from sandbox.namespace.context import select
from sandbox.namespace.images import Image, ImageConfig
from sandbox.namespace.link import ENGINE
from sandbox.namespace.parcel import Placed
from sandbox.namespace.sandbox import NamespaceSandbox
from sandbox.namespace.zygote.execute import DEFAULT_PATH
from sandbox.spec import BuildContext, BuildResult, Limits, Profile, SandboxSpec

if TYPE_CHECKING:
    from sandbox.namespace.engine import NamespaceEngine

BASE_NAME = "termloom-base"
_LOG_LINES = 60
_LOG_BYTES = 16 * 1024
_MARGIN_S = 60.0
_PIDS = 4096


class StepError(Exception):
    """One step did not succeed."""

    def __init__(self, step: str, exit_code: int | None, log: str) -> None:
        self.step, self.exit_code, self.log = step, exit_code, log
        super().__init__(step)


class _Flight:
    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.result: BuildResult | None = None


class SingleFlight:
    """Builds in progress by key."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}

    async def run(self, key: str, work: Callable[[], Awaitable[BuildResult]]) -> BuildResult:
        """The result of `work`, done by this caller or by one who is at it already."""
        while (flight := self._flights.get(key)) is not None:
            await flight.landed.wait()
            if flight.result is not None:
                return flight.result
        flight = self._flights[key] = _Flight()
        try:
            flight.result = await work()
            return flight.result
        finally:
            del self._flights[key]
            flight.landed.set()


def resolve(context: BuildContext) -> tuple[Packages, Recipe]:
    """What the base must have beside the usual, and the steps. Raises: DockerfileError, BuildUnsupported."""
    packages: Packages = ()
    text = context.dockerfile
    if split := split_base(text):
        packages, rest = split
        text = f"FROM {BASE_NAME}\n{rest}"
    recipe = parse(text, engine=ENGINE, environment={"PATH": DEFAULT_PATH})
    if recipe.base != BASE_NAME:
        remedy = f"Start with BASE_DOCKERFILE to the letter or with `FROM {BASE_NAME}`, or use the Docker engine."
        raise BuildUnsupported(ENGINE, f"FROM {recipe.base}", remedy)
    return packages, recipe


class Builder:
    """Builds images for one engine."""

    def __init__(self, engine: NamespaceEngine) -> None:
        self._engine = engine
        self._flights = SingleFlight()

    async def build(self, context: BuildContext) -> BuildResult:
        """See `Engine.build`. Raises: BuildUnsupported, EngineFault."""
        begun = time.monotonic()
        try:
            packages, recipe = resolve(context)
            base = await self._engine.base(packages)
        except DockerfileError as error:
            return BuildResult(image="", failed_step=error.step, log_tail=error.problem)
        except PackagesMissing as missing:
            return missing_packages(missing)
        images = self._engine.images
        if not recipe.steps and not recipe.env and not recipe.workdir:
            return BuildResult(image=base.id, cached=True)
        key = images.key(context, base)
        if await anyio.to_thread.run_sync(images.find, key) is not None:
            return BuildResult(image=key, cached=True, duration_s=time.monotonic() - begun)
        result = await self._flights.run(key, lambda: self._build(context, recipe, base, key))
        return msgspec.structs.replace(result, duration_s=time.monotonic() - begun)

    async def _build(self, context: BuildContext, recipe: Recipe, base: Image, key: str) -> BuildResult:
        deadline = anyio.current_time() + context.timeout_s
        config = ImageConfig(workdir=recipe.workdir, env=recipe.env, user=recipe.user)
        async with await self._engine.open_for_build(_spec(context), base) as sandbox:
            for step in recipe.steps:
                try:
                    with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                        await _carry_out(step, sandbox, context)
                except TimeoutError:
                    return _failure(StepError(step.text, None, f"no end within {context.timeout_s:g} s for all steps"))
                except StepError as failed:
                    await anyio.to_thread.run_sync(self._engine.images.refuse_full_disk)
                    return _failure(failed)
            await sandbox.stop_for_commit()
            await anyio.to_thread.run_sync(self._engine.images.commit, sandbox.id, key, base, config)
        return BuildResult(image=key)


def _spec(context: BuildContext) -> SandboxSpec:
    limits = Limits(lifetime_s=context.timeout_s + _MARGIN_S, pids=_PIDS)
    return SandboxSpec(
        image="",
        profile=Profile.BUILD,
        network="host" if context.network else "none",
        limits=limits,
        purpose="build",
    )


def _failure(failed: StepError) -> BuildResult:
    return BuildResult(image="", failed_step=failed.step, exit_code=failed.exit_code, log_tail=failed.log)


async def _carry_out(step: Step, sandbox: NamespaceSandbox, context: BuildContext) -> None:
    """Raises: StepError, SandboxLost, EngineFault."""
    match step:
        case Run():
            await _run(step, sandbox)
        case Copy():
            await _copy(step, sandbox, context)
        case MakeDirectory():
            await _place(step.text, sandbox, [Placed(path=step.path, owner=step.owner)])


async def _run(step: Run, sandbox: NamespaceSandbox) -> None:
    tail = bytearray()
    process = await sandbox.start(step.argv, user=step.user, cwd=step.cwd, env=step.env)
    try:
        process.close_stdin()
        while (chunk := await process.receive()) is not None:
            tail += chunk[1]
            del tail[:-_LOG_BYTES]
    finally:
        await process.aclose()
    if process.status != 0:
        lines = tail.decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        raise StepError(step.text, process.status, "\n".join(lines))


async def _copy(step: Copy, sandbox: NamespaceSandbox, context: BuildContext) -> None:
    try:
        placed = select(step, context.files)
    except DockerfileError as error:
        raise StepError(step.text, None, error.problem) from error
    await _place(step.text, sandbox, placed)


async def _place(text: str, sandbox: NamespaceSandbox, placed: list[Placed]) -> None:
    try:
        await sandbox.place(placed)
    except TransferRefused as error:
        if error.reason == os.strerror(errno.ENOSPC):  # the half-written file, and so the lack of room, is gone
            raise EngineFault(ENGINE, "build", f"no space is left for {error.path}") from error
        raise StepError(text, None, str(error)) from error
