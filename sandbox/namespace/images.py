"""Images: stacks of directories, and what a session starts with in them.

- The bases: unpacked root file systems, never changed, never removed.
- Built images: one layer on disk in `<state_dir>/images/<id>`, `<id>` being the hash of everything that went into it.
  They appear and go by one rename. They are a cache of this boot: not synced, so after a restart they are made again.
- Frozen images: the upper layer of a sandbox, in the spawner's memory. They live as long as the engine.

Frozen images share layers; a layer is let go with the last image that stands on it.

Several processes share the built images. While a sandbox or a frozen image stands on one, its process holds a shared
lock of the image's `image.json`; who removes it takes that lock exclusively first, and leaves an image that is held.
A lock of a file that is not under its name any more says nothing: who has taken one looks again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

from sandbox.errors import EngineFault, ImageMissing
from sandbox.namespace.link import ENGINE
from sandbox.owner import boot_id
from sandbox.spec import BuildContext, Record

_DEEPEST = 100
_MANIFEST = "image.json"
_SCRATCH = ".build-"
_GONE = ".gone-"
_FORMAT = 2
_ROOM_BYTES = 1 << 20
_IDENTIFYING = ("etc/os-release", "etc/passwd", "var/lib/dpkg/status")


class Layer(Record, frozen=True, kw_only=True):
    """One lower layer: a directory of the host, or a frozen upper layer in the spawner's vault."""

    kind: Literal["directory", "vault"]
    name: str


class ImageConfig(Record, frozen=True, kw_only=True):
    """What a Dockerfile sets for the processes of an image."""

    workdir: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str = "root"
    """The last USER. Sessions run as the agent whatever it says; kept for people."""


class Image(Record, frozen=True, kw_only=True):
    """A file system to start from. `layers` has the topmost first and the base last."""

    id: str
    layers: tuple[Layer, ...]
    config: ImageConfig = ImageConfig()


class _Manifest(Record, frozen=True, kw_only=True):
    """`image.json` of a built image."""

    version: int = _FORMAT
    boot: str
    base: str
    """Directory of the root file system below its layer."""
    config: ImageConfig


class Images:
    """The images of one engine. Methods block briefly on the file system, except `frozen`, `let_go` and `release`.

    `hold`, `frozen`, `let_go` and `release` belong to the event loop's thread.
    """

    def __init__(self, directory: Path, rootfs: Path) -> None:
        self._directory = directory
        self._known: dict[str, Image] = {}
        """The base and what was frozen."""
        self._frozen_layers: Counter[str] = Counter()
        self._locks: dict[str, int] = {}
        """By sandbox or frozen image: the open descriptor of the built image that it stands on, locked shared."""
        self.base = self.add_base(rootfs)
        for half_removed in directory.glob(f"{_GONE}*"):
            shutil.rmtree(half_removed, ignore_errors=True)

    def add_base(self, rootfs: Path) -> Image:
        """The image of an unpacked root file system."""
        image = Image(id=f"base-{_fingerprint(rootfs)}", layers=(Layer(kind="directory", name=str(rootfs)),))
        return self._known.setdefault(image.id, image)

    def key(self, context: BuildContext, base: Image) -> str:
        """The id that building `context` on `base` gives."""
        digest = hashlib.sha256(base.id.encode())
        parts = msgspec.structs.replace(context, timeout_s=0.0)
        digest.update(msgspec.msgpack.encode(parts))
        return digest.hexdigest()

    def find(self, image_id: str) -> Image | None:
        """A built image is looked up on disk each time: another process may have removed it."""
        return self._known.get(image_id) or self._load(image_id)

    def _load(self, image_id: str) -> Image | None:
        if not image_id.isalnum():
            return None
        home = self._directory / image_id
        try:
            manifest = msgspec.json.decode((home / _MANIFEST).read_bytes(), type=_Manifest)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:  # of another format, or torn
            manifest = None
        if manifest is None or manifest.version != _FORMAT or manifest.boot != boot_id():
            self._discard(image_id)
            return None
        layers = (Layer(kind="directory", name=str(home / "layer")), Layer(kind="directory", name=manifest.base))
        return Image(id=image_id, layers=layers, config=manifest.config)

    def scratch(self, sandbox_id: str) -> Path:
        """Where the sandbox that builds an image keeps its upper layer."""
        return self._directory / f"{_SCRATCH}{sandbox_id}"

    def make_scratch(self, sandbox_id: str) -> Path:
        home = self.scratch(sandbox_id)
        for directory in (home, home / "layer", home / "work"):
            directory.mkdir()
        (home / "layer").chmod(0o755)  # the mode of `/` inside, whatever our umask is
        return home

    def drop_scratch(self, sandbox_id: str) -> None:
        """Remove what an unfinished build left. Idempotent."""
        home = self.scratch(sandbox_id)
        if home.exists():
            shutil.rmtree(home)

    def commit(self, sandbox_id: str, image_id: str, base: Image, config: ImageConfig) -> None:
        """Make the scratch layer of a stopped sandbox over `base` the image `image_id`."""
        home = self.scratch(sandbox_id)
        shutil.rmtree(home / "work")
        manifest = _Manifest(boot=boot_id(), base=base.layers[-1].name, config=config)
        (home / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        try:
            home.rename(self._directory / image_id)
        except OSError:
            if self._load(image_id) is None:
                raise
            shutil.rmtree(home)  # another engine process made the same image meanwhile

    def refuse_full_disk(self) -> None:
        """Raises: EngineFault when there is no room for another layer."""
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < _ROOM_BYTES:
            raise EngineFault(ENGINE, "build", f"no space is left in {self._directory}")

    def hold(self, image: Image, sandbox_id: str) -> None:
        """Keep what the sandbox stands on from being removed, by any process, until `let_go`. Raises: ImageMissing."""
        if image.id in self._known:
            self._hold_as(image.id, sandbox_id)
            return
        lock = _locked(self._directory / image.id / _MANIFEST, fcntl.LOCK_SH)
        if lock is None:
            raise ImageMissing(ENGINE, image.id)
        self._locks[sandbox_id] = lock

    def _hold_as(self, holder: str, other: str) -> None:
        """Let `other` hold what `holder` does: a lock is open as long as one of its descriptors is."""
        if (lock := self._locks.get(holder)) is not None:
            self._locks[other] = os.dup(lock)

    def let_go(self, holder: str) -> None:
        """A sandbox, or a frozen image, does not stand on anything any more. Idempotent."""
        if (lock := self._locks.pop(holder, None)) is not None:
            os.close(lock)

    def close(self) -> None:
        """The frozen images are gone: nothing is held any more."""
        for holder in list(self._locks):
            self.let_go(holder)

    def frozen(self, sandbox_id: str, below: Image) -> Image:
        """The image whose topmost layer is the upper layer of the stopped sandbox. Raises: EngineFault."""
        if len(below.layers) >= _DEEPEST:
            raise EngineFault(ENGINE, "freeze", f"the image already has {_DEEPEST} layers")
        layers = (Layer(kind="vault", name=sandbox_id), *below.layers)
        image = Image(id=f"frozen-{sandbox_id}", layers=layers, config=below.config)
        self._known[image.id] = image
        self._frozen_layers.update(_vault_names(image))
        self._hold_as(sandbox_id, image.id)
        return image

    def release(self, image_id: str) -> list[str]:
        """Forget a frozen image; gives the vault layers that nothing stands on any more."""
        image = self._known.get(image_id)
        names = _vault_names(image) if image else []
        if not names:
            return []
        del self._known[image_id]
        self.let_go(image_id)
        self._frozen_layers.subtract(names)
        self._frozen_layers = +self._frozen_layers
        return [name for name in names if name not in self._frozen_layers]

    def remove_built(self, image_id: str) -> None:
        """Remove a built image from the disk unless it is held. Idempotent; does nothing to a base."""
        if image_id.isalnum():
            self._discard(image_id)

    def _discard(self, image_id: str) -> None:
        """Out of sight by one rename: who is killed while removing it leaves no half image to be found."""
        home, gone = self._directory / image_id, self._directory / f"{_GONE}{secrets.token_hex(8)}"
        lock = _locked(home / _MANIFEST, fcntl.LOCK_EX)
        if lock is None:
            return
        try:
            home.rename(gone)
        finally:
            os.close(lock)
        shutil.rmtree(gone, ignore_errors=True)


def _locked(path: Path, kind: int) -> int | None:
    """The descriptor of a file that is locked, shared or exclusively, and still there under its name.

    None when there is none, or another holds a lock against it.
    """
    with ExitStack() as undo:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                return None
        except (FileNotFoundError, BlockingIOError):
            return None
        undo.pop_all()
        return descriptor


def _vault_names(image: Image) -> list[str]:
    return [layer.name for layer in image.layers if layer.kind == "vault"]


def _fingerprint(rootfs: Path) -> str:
    """Of the packages and accounts in a root file system, so that equal ones share their cache."""
    digest = hashlib.sha256()
    for name in _IDENTIFYING:
        path = rootfs / name
        digest.update(path.read_bytes() if path.is_file() and not path.is_symlink() else b"-")
        digest.update(b"\0")
    return digest.hexdigest()[:32]
