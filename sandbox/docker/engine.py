"""The engine on a Docker-compatible socket.

Invariants:
- Creating, starting and removing pass a gate of a few at a time, apart from everything else: an engine does no more of
  them a second with more in flight, only each of them later.
- A create that is cancelled is carried through and undone. What is made carries its owner's mark from the start.
- Leaving the engine removes what it made and nobody removed: its sandboxes and its frozen images. Entering it removes
  frozen images of owners that are dead, but those that a sandbox still stands on: they go when an engine is entered
  after that was reaped. Built images and the base stay: they are the cache.
- No image with volumes leaves `build`: what is frozen is all that a sandbox has written.
- Removing is bounded even where it cannot be cancelled. What an engine that hangs keeps is the reaper's, by its labels.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from sandbox.basebuild import Base, Packages, missing_packages
from sandbox.docker import build, labels
from sandbox.docker.client import (
    CALL_S,
    CREATE_S,
    ENGINE,
    REMOVE_S,
    TRANSFER_S,
    Absent,
    Client,
    Conflict,
    answering,
    probe,
)
from sandbox.docker.config import CLEAN_IMAGE, ImageFacts, container_config, image_facts, volume_refusal
from sandbox.docker.container import Container, remove_container
from sandbox.docker.flight import SingleFlight
from sandbox.docker.images import ensure_base_image, ensure_trusted_volume
from sandbox.docker.labels import BASE_REPOSITORY, FROZEN_REPOSITORY
from sandbox.docker.sandbox import DockerSandbox
from sandbox.docker.watch import EventWatch
from sandbox.errors import EngineFault, ImageMissing, PackagesMissing, SandboxError
from sandbox.owner import owner_is_dead, owner_token
from sandbox.spec import BuildContext, BuildResult, Profile, SandboxRecord, SandboxSpec
from sandbox.trusted import trusted_argv

_CLEAN_S = 60.0
_LEAVE_S = 300.0
"""For all that is left when the engine is left, together."""


class DockerEngine:
    """`base` gives a base environment once it is needed; `url` defaults to DOCKER_HOST, then the usual socket."""

    name = ENGINE

    def __init__(self, *, base: Callable[[Packages], Awaitable[Base]], url: str | None = None, gate: int = 8) -> None:
        self._base = base
        self._client = Client(url)
        self._owner = owner_token()
        self._watch = EventWatch(self._client, self._owner)
        self._gate = anyio.CapacityLimiter(gate)
        self._images: dict[str, ImageFacts] = {}
        self._filled_volume = ""
        """The trusted volume, once it was seen filled."""
        self._sandboxes: set[str] = set()
        self._frozen: set[str] = set()

    @staticmethod
    async def probe(url: str | None = None) -> str | None:
        """None when an engine answers, else the reason why it cannot be used."""
        return await probe(url)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            with answering("connecting", CALL_S):
                await self._client.ask("GET", "version")
            self._tasks: TaskGroup = await stack.enter_async_context(anyio.create_task_group())
            self._builds: SingleFlight[BuildResult] = SingleFlight(self._tasks)
            self._parts: SingleFlight[str] = SingleFlight(self._tasks)
            self._tasks.start_soon(self._watch.run)
            await self._forget_dead_images()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.move_on_after(_LEAVE_S, shield=True):
            await self._remove_leftovers()
        self._tasks.cancel_scope.cancel()
        await self._stack.aclose()  # not told of `exc`, which would come back wrapped in a group

    async def _remove_leftovers(self) -> None:
        async with anyio.create_task_group() as group:  # the gate says how many at once
            for sandbox_id in self._sandboxes:
                group.start_soon(self._try, self.remove, sandbox_id)
        for image in list(self._frozen):
            await self._try(self.remove_image, image)

    async def _try(self, remove: Callable[[str], Awaitable[None]], name: str) -> None:
        with contextlib.suppress(SandboxError):  # stays listed by its labels, for the reaper
            await remove(name)

    async def _forget_dead_images(self) -> None:
        filters = json.dumps({"label": [f"{labels.IMAGE}=frozen"]})
        with answering("listing images", CALL_S):
            listed = await self._client.ask("GET", "images/json", {"filters": filters})
        for image in listed:
            if owner_is_dead((image.get("Labels") or {}).get(labels.IMAGE_OWNER, "")):
                for name in image.get("RepoTags") or ():
                    with contextlib.suppress(Conflict):
                        await self.remove_image(name)

    async def build(self, context: BuildContext) -> BuildResult:
        dockerfile = context.dockerfile
        if split := build.split_local_base(dockerfile):
            packages, rest = split
            try:
                base = await self._base_image(packages)
            except PackagesMissing as missing:
                return missing_packages(missing)
            dockerfile = f"FROM {base}\n{rest}"
        name = build.image_name(dockerfile, context)
        result, _ = await self._builds.run(name, lambda: build.build_image(self._client, name, dockerfile, context))
        if result.ok and (refusal := volume_refusal((await self._image_facts(name)).volumes)):
            await self._try(self.remove_image, name)
            raise refusal
        return result

    async def _base_image(self, packages: Packages = ()) -> str:
        async def make() -> str:
            return await ensure_base_image(self._client, await self._base(packages))

        return (await self._parts.run(" ".join(("base", *packages)), make))[0]

    async def _trusted_volume(self) -> str:
        async def make() -> str:
            image = await self._base_image()
            return await ensure_trusted_volume(self._client, await self._base(()), image, owner=self._owner)

        if not self._filled_volume:
            self._filled_volume, _ = await self._parts.run("trusted", make)
        return self._filled_volume

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        image = await self._image_facts(spec.image)
        trusted = await self._trusted_volume() if spec.profile is Profile.GRADE else None
        sandbox_id = labels.new_sandbox_id()
        container = Container(sandbox_id, spec, image, client=self._client, watch=self._watch, tasks=self._tasks)
        marks = labels.sandbox_labels(
            sandbox_id, spec, owner=self._owner, expires_at=time.time() + spec.limits.lifetime_s
        )
        config = container_config(spec, image, marks, trusted_volume=trusted)
        sandbox = DockerSandbox(self, container)
        try:
            async with self._gate:
                self._sandboxes.add(sandbox_id)
                with anyio.CancelScope(shield=True):
                    await container.create(config)
            await anyio.lowlevel.checkpoint()
            if spec.profile is Profile.GRADE:
                await self._clean(sandbox)
        except BaseException:
            if trusted:
                self._filled_volume = ""  # it may have been removed by somebody: looked at again the next time
            with anyio.move_on_after(REMOVE_S, shield=True):
                await self.remove(sandbox_id)
            raise
        return sandbox

    async def _clean(self, sandbox: DockerSandbox) -> None:
        done = await sandbox.exec([*trusted_argv(), "-c", CLEAN_IMAGE], user="root", cwd="/", timeout_s=_CLEAN_S)
        if done.exit_code != 0:
            raise EngineFault(ENGINE, "cleaning a frozen image", done.stderr.decode(errors="replace")[-500:])

    async def _image_facts(self, image: str) -> ImageFacts:
        """Raises: ImageMissing, EngineFault."""
        if image not in self._images:
            try:
                with answering(f"looking for the image {image}", CALL_S):
                    self._images[image] = image_facts(await self._client.ask("GET", f"images/{image}/json"))
            except Absent as absent:
                raise ImageMissing(ENGINE, image) from absent
        return self._images[image]

    async def commit(self, container: Container) -> str:
        """The file system of an ended container as an image. Raises: SandboxLost, EngineFault."""
        name = f"{FROZEN_REPOSITORY}:{container.sandbox_id}"
        query = {"container": labels.container_name(container.sandbox_id), "repo": FROZEN_REPOSITORY, "pause": "0"}
        body = {"Labels": labels.image_labels("frozen", owner=self._owner)}
        self._frozen.add(name)
        with answering("freezing a sandbox", TRANSFER_S, sandbox_id=container.sandbox_id):
            await self._client.ask("POST", "commit", {**query, "tag": container.sandbox_id}, data=body)
        return name

    async def inventory(self) -> list[SandboxRecord]:
        query = {"all": "1", "filters": json.dumps({"label": [labels.SANDBOX]})}
        with answering("listing sandboxes", CALL_S):
            listed = await self._client.ask("GET", "containers/json", query)
        return [record for entry in listed if (record := labels.record_of(entry)) is not None]

    async def remove(self, sandbox_id: str) -> None:
        async with self._gate:
            await remove_container(self._client, sandbox_id)
        self._sandboxes.discard(sandbox_id)

    async def remove_image(self, image: str) -> None:
        if image.startswith(f"{BASE_REPOSITORY}:"):
            return
        self._images.pop(image, None)
        try:
            with answering("removing an image", CREATE_S):
                await self._client.ask("DELETE", f"images/{image}")
        except Absent:
            pass
        self._frozen.discard(image)
