"""What every generation stage is given, and the few things that stages do in sandboxes.

Invariants:
- A verdict that leaves here carries a reward, or says that the tests themselves ran out of time. Anything else is
  infrastructure: `RetryLater`, never the item's fault.
- Final tests see frozen images only: the processes that made them are dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio

from generators.images import HeldImages
from generators.messages import Environment
from generators.roles import Cast, Played, Solver
from runtime.ground import Ground
from runtime.limits import Limits as NamedLimits
from runtime.settings import AgentSection, GenerateSettings
from runtime.stage import RetryLater
from sandbox.engine import Engine, Sandbox
from sandbox.errors import EngineFault, ImageMissing, ServiceUnhealthy
from sandbox.services import Service
from sandbox.spec import BuildContext, BuildResult, FailureClass, Limits, Suite, Verdict

Result = TypeVar("Result")

TESTS_OWN = (FailureClass.GRADE_TIMEOUT, FailureClass.REWARD_INVALID)
"""Verdicts without a reward that are the tests' own doing."""

_TRIES = 3
"""A stage makes several attempts: were each fault to repeat all of them, a few per cent of faults would stop it."""


@dataclass(frozen=True, kw_only=True)
class Players:
    """The cast, and what the certificate says of it."""

    cast: Cast
    name: str
    """`procedural`, or `chat:<model>`."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Version of each prompt template."""
    measured: Solver | None = None
    """The policy whose pass rate the difficulty band is about; None: the cast's own solver."""
    measured_name: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerationContext:
    """Given to every stage of a generation run."""

    engine: Engine
    limits: NamedLimits
    players: Players
    settings: GenerateSettings
    run_id: str
    seed: int
    out: Path
    agent: AgentSection = field(default_factory=AgentSection)
    """Which the chat author's endpoint plays."""
    images: HeldImages = field(default_factory=HeldImages)

    def bench(self, item: str, environment: Environment) -> Bench:
        """Where the item's environment is built, played in and graded."""
        context = BuildContext(dockerfile=environment.dockerfile, files=environment.files, network=environment.network)
        return Bench(
            self.engine,
            self.limits,
            context,
            Limits(memory_mb=environment.memory_mb),
            services=environment.services,
            run_id=self.run_id,
            item=item,
            images=self.images,
        )


class Bench:
    """One environment in work. Every method may raise RetryLater, SandboxError."""

    def __init__(
        self,
        engine: Engine,
        named: NamedLimits,
        context: BuildContext,
        limits: Limits,
        *,
        services: Sequence[Service],
        run_id: str,
        item: str,
        images: HeldImages,
    ) -> None:
        self._engine, self._named, self._images = engine, named, images
        self._context, self._item = context, item
        self._ground = Ground(engine=engine, named=named, limits=limits, services=services, run_id=run_id, item=item)

    async def build(self) -> BuildResult:
        """Build the environment, or find it built; it is the item's until the item lets go of it."""
        async with self._named.take("build", item=self._item):
            built = await self._engine.build(self._context)
        if built.ok:
            self._images.hold(built.image, self._item)
            await self._images.release_beyond(self._engine)
        return built

    async def image(self) -> str:
        """The image of an environment that was built before. A failure now is infrastructure's."""
        built = await self.build()
        if not built.ok:
            raise RetryLater(f"{self._item}: an environment that was built does not build: {built.failed_step}")
        return built.image

    def sandbox(self, image: str, purpose: str) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox as an agent gets it, its services healthy. Raises: ServiceUnhealthy."""
        return self._ground.sandbox(image, purpose)

    async def attempt(
        self, image: str, suite: Suite, purpose: str, play: Callable[[Sandbox], Awaitable[Result]]
    ) -> tuple[Result, Verdict]:
        """Let `play` act in a fresh sandbox, freeze it, grade what is left.

        When infrastructure fails, only this attempt is made again, a few times, before the whole stage has to be. An
        image that another process has removed meanwhile is built again for it.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._attempt_once(image, suite, purpose, play)
            except (EngineFault, RetryLater, ServiceUnhealthy) as fault:
                if not tries_left:
                    raise
                if isinstance(fault, ImageMissing):
                    await self.image()
        raise AssertionError("unreachable")

    async def _attempt_once(
        self, image: str, suite: Suite, purpose: str, play: Callable[[Sandbox], Awaitable[Result]]
    ) -> tuple[Result, Verdict]:
        frozen = ""
        try:
            async with self.sandbox(image, purpose) as sandbox:
                played = await play(sandbox)
                frozen = await sandbox.freeze()
            return played, await self.grade(frozen, suite, purpose)
        finally:
            if frozen:
                with anyio.move_on_after(10, shield=True):
                    await self._engine.remove_image(frozen)

    async def grade(self, image: str, suite: Suite, purpose: str) -> Verdict:
        """Run tests over an image. Raises: RetryLater when infrastructure kept them from being run."""
        verdict = await self._ground.grade(image, suite, purpose)
        if verdict.reward is None and verdict.failure not in TESTS_OWN:
            raise RetryLater(f"{self._item}: grading failed ({verdict.failure}): {verdict.detail}")
        return verdict


async def replay(sandbox: Sandbox, commands: Sequence[str], *, timeout_s: float) -> Played:
    """Run known commands in one persistent session, as their author did."""
    session = await sandbox.open_session()
    for command in commands:
        await session.run(command, timeout_s=timeout_s)
    await session.aclose()
    return Played(commands=tuple(commands), turns=len(commands))
