"""The daemonless engine: sandboxes out of kernel namespaces, overlayfs and control groups.

A small spawner process (`sandbox.namespace.zygote`) does the work; this side keeps leases, images and deadlines. The
spawner dies with this process, even when it is killed, and takes every sandbox with it.

Invariants:
- A lease file exists before its sandbox and is deleted after the sandbox is proved gone.
- A built image that a sandbox stands on is removed by no engine of the directory.
- Whatever a dead owner left is cleared when the next engine opens the same state directory.
- Needs root, and nothing else that is not part of the kernel and of Python.
"""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec

from sandbox.basebuild import Base, Packages
from sandbox.errors import BuildUnsupported, EngineFault, EngineUnavailable, ImageMissing
from sandbox.namespace.builder import Builder
from sandbox.namespace.images import Image, Images
from sandbox.namespace.leases import Leases
from sandbox.namespace.link import ENGINE, GoneError, Link, spawner_command
from sandbox.namespace.sandbox import NamespaceSandbox
from sandbox.namespace.zygote.cgroups import Cgroups
from sandbox.owner import owner_token
from sandbox.spec import TRUSTED_DIR, BuildContext, BuildResult, Profile, SandboxRecord, SandboxSpec

_REMEDY = "Use the Docker engine, or run as root on a Linux host."
_KILL_S = 30.0
_TRIAL_S = 30.0
_LEASE_MARGIN_S = 30.0


class NamespaceEngine:
    """An `Engine`. One spawner, one state directory; engines of several processes may share the directory."""

    def __init__(
        self,
        *,
        state_dir: Path,
        rootfs: Path,
        trusted: Path | None,
        more: Callable[[Packages], Awaitable[Base]] | None = None,
    ) -> None:
        """`more` gives the base with more packages than `rootfs` has, once it is needed."""
        self._more = more
        self._bases: dict[Packages, Image] = {}
        self._making = anyio.Lock()  # protects the making of a base
        self._state_dir = state_dir.absolute()
        self._rootfs = rootfs.absolute()
        self._trusted = trusted.absolute() if trusted else None
        self._leases = Leases(self._state_dir / "sandboxes")
        self._sandboxes: dict[str, NamespaceSandbox] = {}
        self._builder = Builder(self)
        self._cgroups = Cgroups({}, unified=False)
        self._owner = ""
        self._link: Link | None = None
        self._images: Images | None = None
        self.notes: tuple[str, ...] = ()
        """For people: limits that this machine does not allow to set, leftovers that could not be removed."""

    @property
    def name(self) -> str:
        return ENGINE

    @property
    def images(self) -> Images:
        assert self._images is not None, "the engine is not open"
        return self._images

    @staticmethod
    def probe() -> str | None:
        """Why this machine cannot run the engine; None when it can. Takes some tens of milliseconds, blocking."""
        if platform.system() != "Linux":
            return "it needs Linux"
        if os.geteuid() != 0:
            return "it needs root"
        try:
            trial = subprocess.run(
                spawner_command("trial"), stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "making namespaces takes for ever"
        return None if trial.returncode == 0 else trial.stdout.decode() or trial.stderr.decode()[-500:]

    async def __aenter__(self) -> Self:
        """Raises: EngineUnavailable."""
        try:
            await anyio.to_thread.run_sync(self._prepare)
        except OSError as error:
            reason = f"{error.filename or self._state_dir}: {error.strerror or error}"
            raise EngineUnavailable(ENGINE, reason, "Choose another state directory (TERMLOOM_STATE).") from error
        self._link = await Link.open(self._state_dir / "mnt")
        self._link.on_down = self._on_down
        self._link.on_gone = self._on_gone
        self.notes += self._link.notes
        return self

    def _prepare(self) -> None:
        if os.geteuid() != 0:
            raise EngineUnavailable(ENGINE, "it needs root", _REMEDY)
        if not self._rootfs.is_dir():
            raise EngineUnavailable(ENGINE, f"there is no base file system at {self._rootfs}", "Make it first.")
        # Root's alone: layers may hold setuid files of a build.
        for name in ("sandboxes", "images", "mnt"):
            (self._state_dir / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._state_dir.chmod(0o700)
        self._cgroups = Cgroups.detect()
        self._owner = owner_token()
        self._images = Images(self._state_dir / "images", self._rootfs)
        self._leases.drop_halves()
        for sandbox_id in self._leases.abandoned():
            try:
                self._clear(sandbox_id)
            except OSError as error:
                self.notes += (f"sandbox {sandbox_id} of a dead owner cannot be removed: {error}",)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End the spawner, and so every sandbox of this engine; frozen images go too."""
        if self._link is not None:
            await self._link.aclose()
            self._link = None
            with anyio.CancelScope(shield=True):
                for sandbox_id in list(self._sandboxes):
                    await self.clear(sandbox_id)
            self.images.close()

    def _open_link(self) -> Link:
        if self._link is None:
            raise EngineFault(ENGINE, "create", "the engine is not open")
        return self._link

    def _on_down(self, sandbox_id: str, why: str) -> None:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            sandbox.on_down(why)

    def _on_gone(self, why: str) -> None:
        for sandbox in self._sandboxes.values():
            sandbox.on_down(why)

    # Images

    async def build(self, context: BuildContext) -> BuildResult:
        """See `Engine.build`. Raises: BuildUnsupported, EngineFault."""
        return await self._builder.build(context)

    async def base(self, packages: Packages) -> Image:
        """The base with these packages more. Raises: BuildUnsupported, EngineUnavailable, PackagesMissing."""
        if not packages:
            return self.images.base
        if self._more is None:
            raise BuildUnsupported(ENGINE, f"a base with {', '.join(packages)}", "Open the engine with `open_engine`.")
        if packages in self._bases:
            return self._bases[packages]
        async with self._making:
            if packages not in self._bases:
                made = await self._more(packages)
                self._bases[packages] = await anyio.to_thread.run_sync(self.images.add_base, made.rootfs)
        return self._bases[packages]

    async def remove_image(self, image: str) -> None:
        """Forget an image. Idempotent. Sandboxes that run on one keep it. Raises: EngineFault."""
        for layer in self.images.release(image):
            await self._open_link().request("forget", {"layer": layer})
        await anyio.to_thread.run_sync(self.images.remove_built, image)

    # Sandboxes

    async def create(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Start a sandbox. A cancelled create leaves nothing behind. Raises: ImageMissing, EngineFault."""
        image = await anyio.to_thread.run_sync(self.images.find, spec.image)
        if image is None:
            raise ImageMissing(ENGINE, spec.image)
        return await self._start(spec, image, scratch=False)

    async def open_for_build(self, spec: SandboxSpec, base: Image) -> NamespaceSandbox:
        """A sandbox over `base` whose upper layer lies on disk, so that it can become an image."""
        return await self._start(spec, base, scratch=True)

    async def _start(self, spec: SandboxSpec, image: Image, *, scratch: bool) -> NamespaceSandbox:
        link = self._open_link()
        if spec.profile is Profile.GRADE and self._trusted is None:
            raise EngineFault(ENGINE, "create", "a grading sandbox needs the trusted interpreter, which is not set")
        sandbox_id = secrets.token_hex(8)
        await anyio.to_thread.run_sync(self._leases.write, self._record(sandbox_id, spec))
        sandbox = self._sandboxes[sandbox_id] = NamespaceSandbox(sandbox_id, spec, image, self, link)
        try:
            self.images.hold(image, sandbox_id)
            upper = ""
            if scratch:
                upper = str(await anyio.to_thread.run_sync(self.images.make_scratch, sandbox_id))
            await link.request("start", self._start_fields(sandbox, image, upper))
        except GoneError as error:
            await sandbox.remove()
            raise EngineFault(ENGINE, "create", str(error)) from error
        except BaseException:
            await sandbox.remove()
            raise
        return sandbox

    def _record(self, sandbox_id: str, spec: SandboxSpec) -> SandboxRecord:
        now = time.time()
        return SandboxRecord(
            sandbox_id=sandbox_id,
            engine=ENGINE,
            run_id=spec.run_id,
            purpose=spec.purpose,
            owner=self._owner,
            created_at=now,
            expires_at=now + spec.limits.lifetime_s + _LEASE_MARGIN_S,
        )

    def _start_fields(self, sandbox: NamespaceSandbox, image: Image, upper: str) -> dict[str, object]:
        spec, limits = sandbox.spec, sandbox.spec.limits
        return {
            "sandbox": sandbox.id,
            "profile": spec.profile.value,
            "layers": [msgspec.to_builtins(layer) for layer in image.layers],
            "upper": upper,
            "lease": str(self._leases.path(sandbox.id)),
            "trusted": str(self._trusted) if spec.profile is Profile.GRADE else "",
            "trusted_at": TRUSTED_DIR,
            "host_network": spec.network == "host",
            "memory_mb": limits.memory_mb,
            "pids": limits.pids,
            "cpus": limits.cpus,
            "disk_mb": limits.disk_mb,
            "lifetime_s": limits.lifetime_s,
        }

    async def release(self, sandbox_id: str) -> None:
        """Delete the lease of a sandbox that is proved gone, and what its build left."""
        await anyio.to_thread.run_sync(self._forget, sandbox_id)
        self.images.let_go(sandbox_id)
        self._sandboxes.pop(sandbox_id, None)

    def _forget(self, sandbox_id: str) -> None:
        self.images.drop_scratch(sandbox_id)
        self._leases.remove(sandbox_id)

    async def inventory(self) -> list[SandboxRecord]:
        """Every sandbox with a lease in this state directory, whoever started it."""
        return await anyio.to_thread.run_sync(self._leases.all)

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox by id, one of another process too. Idempotent. Raises: EngineFault."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await sandbox.remove()
            return
        await self.clear(sandbox_id)

    async def clear(self, sandbox_id: str) -> None:
        """Remove what a sandbox has on this machine when no spawner of ours answers for it. Raises: EngineFault."""
        try:
            await anyio.to_thread.run_sync(self._clear, sandbox_id)
        except OSError as error:
            raise EngineFault(ENGINE, "remove", str(error)) from error
        self.images.let_go(sandbox_id)
        self._sandboxes.pop(sandbox_id, None)

    def _clear(self, sandbox_id: str) -> None:
        if not self._leases.holds(sandbox_id):
            return
        self._cgroups.kill(sandbox_id, timeout_s=_KILL_S)
        self._cgroups.remove(sandbox_id)
        self._forget(sandbox_id)
