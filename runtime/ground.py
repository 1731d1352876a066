"""Where an item acts and is graded: sandboxes of one environment, within the named limits.

Invariants:
- A place in a limit is held only while it is used: starting holds `create`, a running sandbox holds `run`, grading
  holds `grade`; waiting for one never holds another but `run`.
- What is graded is a frozen image: the processes that made it are dead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runtime.limits import Limits as NamedLimits
from sandbox.engine import Engine, Sandbox
from sandbox.services import Service, start_services
from sandbox.spec import Limits, SandboxSpec, Suite, Verdict
from sandbox.verifier import grade


@dataclass(frozen=True, kw_only=True)
class Ground:
    """One item's environment on one engine. Every method may raise SandboxError."""

    engine: Engine
    named: NamedLimits
    limits: Limits
    """Of each sandbox."""
    services: Sequence[Service]
    run_id: str
    item: str

    @asynccontextmanager
    async def sandbox(self, image: str, purpose: str) -> AsyncIterator[Sandbox]:
        """A fresh sandbox as an agent gets it, its services healthy. Raises: ServiceUnhealthy."""
        spec = SandboxSpec(image=image, limits=self.limits, run_id=self.run_id, purpose=f"{purpose} {self.item}")
        async with self.named.take("run", item=self.item):
            async with self.named.take("create", item=self.item):
                sandbox = await self.engine.create(spec)
            async with sandbox:
                await start_services(sandbox, self.services)
                yield sandbox

    async def grade(self, image: str, suite: Suite, purpose: str) -> Verdict:
        """Run tests over an image."""
        async with self.named.take("grade", item=self.item):
            return await grade(
                self.engine,
                image,
                suite,
                services=self.services,
                limits=self.limits,
                run_id=self.run_id,
                purpose=f"grade {purpose} {self.item}",
            )
