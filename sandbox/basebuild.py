"""Makes the base environment of `sandbox.base` once for each machine, from the distribution's packages.

`ensure_base` gives a `Base`: a tar for engines that import one, the same unpacked for engines that mount one, and the
trusted tree for grading (see `sandbox.trusted`). A base with more packages is made the same way, when it is first asked
for, and graded with the plain one's trusted tree.

Invariants:
- A cache entry is complete or absent: it is made beside its final place and renamed. Its name is the hash of the base
  text, the builder's version and the machine's architecture.
- One process builds at a time; others wait for it and use what it made. What a killed one left is removed by the next.
- The programs that make it are a session of their own: their signals do not reach us. They end when we are cancelled
  or die, and are given time to clean up.
- Nothing of this machine stays in the base: no resolver, host name, machine id, package lists or logs.

Who is at fault when it is not made depends on what it is. The plain base is a matter of the machine: it ends a run, as
`EngineUnavailable` with the remedy. Where that one is there, packages that were asked for beside it end nothing: a
program that fails or is too slow over them is `PackagesMissing`, a network or a disk that fails is an `EngineFault`.

Ways to make the tar, in order: mmdebstrap (as root, or as an ordinary user where the kernel lets it; installed by
apt-get when root lacks it), with the host's own Debian source as mirror; else the engine's own way, when there is one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from sandbox.base import BASE_PACKAGES, base_dockerfile
from sandbox.errors import EngineFault, EngineUnavailable, PackagesMissing, SandboxError
from sandbox.spec import AGENT_UID, AGENT_USER, BuildResult, Record
from sandbox.trusted import make_trusted, trusted_argv, trusted_shell

__all__ = ["Base", "base_digest", "default_cache", "ensure_base", "trusted_argv", "trusted_shell"]

BUILDER_VERSION = 1
"""Raised whenever this module or `sandbox.trusted` makes something different from the same base text."""

_NAME = "base environment"
_SUITE = "bookworm"
_DEADLINE_S = 1800.0
_STOP_S = 20.0
_SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list.d/debian.list")
_LEFTOVERS = (
    "/etc/resolv.conf", "/etc/hostname", "/etc/machine-id", "/etc/.pwd.lock", "/etc/passwd-", "/etc/group-",
    "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-", "/var/log/*", "/var/cache/ldconfig/*",
    "/var/cache/debconf/*-old", "/var/lib/apt/lists/*", "/var/cache/apt/*.bin", "/var/lib/dpkg/*-old",
)  # fmt: skip
_EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*")

_REASON_LINES, _LOG_LINES = 8, 20
_APT_FAILED = 100
_UNKNOWN = ("Unable to locate package", "has no installation candidate", "unmet dependencies")
_PASSING = (
    "no space left on device", "enough free space", "enough free disk space", "temporary failure", "could not resolve",
    "could not connect", "unable to connect", "connection failed", "connection timed out", "connection refused",
    "network is unreachable", "failed to fetch", "unable to fetch", "failed to download", "hash sum mismatch",
)  # fmt: skip
"""How apt and its helpers word trouble with the network or the disk."""

Packages = tuple[str, ...]
Progress = Callable[[str], None]
MakeTar = Callable[[Path, str], Awaitable[None]]
"""Writes the file system that a Dockerfile text describes to a tar.

Raises: MakingFailed; EngineUnavailable, EngineFault for what is not the doing of the text.
"""


class Base(Record, frozen=True):
    """A base environment on this machine."""

    tar: Path
    rootfs: Path
    """`tar` unpacked, owners kept when root made it; `/dev` is empty."""
    trusted: Path
    digest: str
    """Of what it was made from; equal on every machine of one architecture."""


class MakingFailed(Exception):
    """A program or step that makes the tar ended with a failure. Becomes a fault of whoever is to blame."""

    def __init__(self, what: str, log: str, remedy: str) -> None:
        self.what, self.log, self.remedy = what, log, remedy
        super().__init__(f"{what}: {' | '.join(log.splitlines()[-_REASON_LINES:])}")


def base_digest(packages: Packages = ()) -> str:
    """The cache key."""
    text = f"{BUILDER_VERSION}\n{platform.machine()}\n{base_dockerfile(packages)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_cache(environ: Mapping[str, str]) -> Path:
    """`$TERMLOOM_CACHE`, else the user's cache directory."""
    if chosen := environ.get("TERMLOOM_CACHE"):
        return Path(chosen)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "termloom"


async def ensure_base(
    packages: Packages = (), *, cache: Path, progress: Progress, otherwise: MakeTar | None = None
) -> Base:
    """The base environment with these packages more, made now when the cache lacks it.

    `otherwise` writes the tar where mmdebstrap cannot be used.

    Raises: EngineUnavailable, with the reason and the remedy; with packages also PackagesMissing, EngineFault.
    """
    plain = await ensure_base(cache=cache, progress=progress, otherwise=otherwise) if packages else None
    try:
        base = await _ensure(packages, cache, progress, otherwise)
    except EngineUnavailable as refusal:
        if not packages:
            raise
        raise _fault(packages, f"{refusal.reason}. {refusal.remedy}") from refusal
    return msgspec.structs.replace(base, trusted=plain.trusted) if plain else base


async def _ensure(packages: Packages, cache: Path, progress: Progress, otherwise: MakeTar | None) -> Base:
    """Raises: EngineUnavailable, PackagesMissing, EngineFault."""
    digest = base_digest(packages)
    home = cache / "base"
    final = home / digest
    try:
        if not final.is_dir():
            home.mkdir(parents=True, exist_ok=True)
            async with _lock(home / "lock", progress):
                if not final.is_dir():
                    await _make(home, final, packages, progress, otherwise)
    except OSError as error:
        reason = f"{error.filename or home}: {error.strerror or error}"
        raise _unavailable(reason, "Free space there, or choose another cache (TERMLOOM_CACHE).") from error
    return Base(tar=final / "base.tar", rootfs=final / "rootfs", trusted=final / "trusted", digest=digest)


def missing_packages(missing: PackagesMissing) -> BuildResult:
    """A build that failed at the line of its packages."""
    line = base_dockerfile(missing.packages).splitlines()[-1]
    return BuildResult(image="", failed_step=line, exit_code=_APT_FAILED, log_tail=missing.log)


@asynccontextmanager
async def _lock(path: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold `path` exclusively; protects the making of the base among processes.

    The waiting is done by a child on the shared descriptor: unlike a thread in flock(2), it can be cancelled.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process to make the base environment")
            wait = "import fcntl, sys; fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX)"
            await anyio.run_process([sys.executable, "-c", wait, str(descriptor)], pass_fds=[descriptor])
        yield
    finally:
        os.close(descriptor)


async def _make(home: Path, final: Path, packages: Packages, progress: Progress, otherwise: MakeTar | None) -> None:
    for leftover in home.glob("partial-*"):
        await anyio.to_thread.run_sync(shutil.rmtree, leftover)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=home))
    try:
        partial.chmod(0o755)
        with anyio.fail_after(_DEADLINE_S):
            await _make_parts(partial, packages, progress, otherwise)
        partial.rename(final)
    except TimeoutError:
        late = MakingFailed("its programs were too slow", f"not made within {_DEADLINE_S:g} s", "Check the network.")
        raise _blamed(packages, late) from None
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shutil.rmtree, partial, True)


async def _make_parts(partial: Path, packages: Packages, progress: Progress, otherwise: MakeTar | None) -> None:
    what = f"the base environment with {', '.join(packages)}" if packages else "the base environment"
    progress(f"making {what} (once; a minute or two)")
    await _make_tar(partial / "base.tar", packages, progress, otherwise)
    progress(f"unpacking {what}")
    await _unpack(partial / "base.tar", partial / "rootfs")
    if not packages:
        progress("making the trusted interpreter")
        await make_trusted(partial / "rootfs", partial / "trusted")
    progress(f"{what} is ready")


def _unavailable(reason: str, remedy: str) -> EngineUnavailable:
    return EngineUnavailable(_NAME, reason, remedy)


def _fault(packages: Packages, reason: str) -> EngineFault:
    return EngineFault(_NAME, f"making it with {', '.join(packages)}", reason)


def _blamed(packages: Packages, failed: MakingFailed) -> SandboxError:
    if not packages:
        return _unavailable(str(failed), failed.remedy)
    if any(words in failed.log.lower() for words in _PASSING):
        return _fault(packages, str(failed))
    return PackagesMissing(packages, f"{failed.what}\n{failed.log}")


async def _make_tar(tar: Path, packages: Packages, progress: Progress, otherwise: MakeTar | None) -> None:
    if shutil.which("mmdebstrap") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        await _install_mmdebstrap(progress)
    try:
        if not await _made_by_mmdebstrap(tar, packages, progress, last=otherwise is None):
            assert otherwise is not None
            await otherwise(tar, base_dockerfile(packages))
    except MakingFailed as failed:
        raise _blamed(packages, failed) from failed


async def _made_by_mmdebstrap(tar: Path, packages: Packages, progress: Progress, *, last: bool) -> bool:
    """False where another way may do better. Raises: MakingFailed, EngineUnavailable."""
    if shutil.which("mmdebstrap") is None:
        if last:
            raise _unavailable("the program mmdebstrap is missing", "Install it: apt-get install mmdebstrap.")
        progress("no mmdebstrap here: the engine makes the base environment")
        return False
    try:
        await _run(mmdebstrap_argv(tar, _host_source(), packages), progress, env={"SOURCE_DATE_EPOCH": "0"})
    except MakingFailed as failed:
        if last or (packages and any(words in failed.log for words in _UNKNOWN)):
            raise
        progress(f"{failed}: the engine makes the base environment")
        return False
    return True


async def _install_mmdebstrap(progress: Progress) -> None:
    progress("installing mmdebstrap")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        await _run(["apt-get", "update", "-qq"], progress, env=env)
        await _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"], progress, env=env)
    except MakingFailed as failed:
        raise _unavailable(str(failed), failed.remedy) from failed


def _host_source() -> Path | None:
    """The host's own Debian source when it serves the base's suite; mmdebstrap's default mirror otherwise."""
    for path in map(Path, _SOURCES):
        if path.is_file() and _SUITE in path.read_text():
            return path
    return None


def mmdebstrap_argv(tar: Path, source: Path | None, packages: Packages = ()) -> list[str]:
    """The command that writes the base environment to `tar`."""
    included = ",".join((*BASE_PACKAGES, *packages))
    leftovers = " ".join(f'"$1"{path}' for path in _LEFTOVERS)
    return [
        "mmdebstrap", "--variant=minbase", "--mode=auto", "--format=tar", f"--include={included}",
        '--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude={path}" for path in _EXCLUDED),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        f'--customize-hook=chroot "$1" useradd --create-home --uid {AGENT_UID} --shell /bin/bash {AGENT_USER}',
        f"--customize-hook=rm -rf {leftovers}",
        _SUITE, str(tar), *([str(source)] if source else []),
    ]  # fmt: skip


async def _run(argv: Sequence[str], progress: Progress, *, env: Mapping[str, str]) -> None:
    """Run a program, its informative lines as progress. Raises: MakingFailed with the end of its output."""
    tail: deque[str] = deque(maxlen=_LOG_LINES)
    async with _own_session(argv, env) as process:
        assert process.stdout is not None
        async for line in _lines(TextReceiveStream(process.stdout, errors="replace")):
            tail.append(line)
            if line.startswith("I: ") and "-hook in shell" not in line:
                progress(line[3:])
        await process.wait()
    if process.returncode:
        raise MakingFailed(
            f"{argv[0]} failed with exit code {process.returncode}",
            "\n".join(tail),
            "Check the network and the package sources under /etc/apt, then try again.",
        )


@asynccontextmanager
async def _own_session(argv: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Process]:
    """mmdebstrap ends its whole process group when it fails, and cleans up when it is told to end."""
    bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    async with await anyio.open_process(
        [*bound, *argv], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=os.environ | env, start_new_session=True
    ) as process:
        try:
            yield process
        except BaseException:
            _kill_group(process, SIGTERM)  # as a terminal does: it waits for the programs that it started
            with anyio.move_on_after(_STOP_S, shield=True):
                await process.wait()
            raise
        finally:
            _kill_group(process, SIGKILL)


def _kill_group(process: Process, signal: Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal)


async def _lines(stream: TextReceiveStream) -> AsyncIterator[str]:
    rest = ""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line.rstrip("\r")
    if rest:
        yield rest


async def _unpack(tar: Path, rootfs: Path) -> None:
    rootfs.mkdir()
    argv = ["tar", "--extract", "--file", str(tar), "--directory", str(rootfs), "--exclude=./dev/*", "--exclude=dev/*"]
    if os.geteuid() == 0:
        argv += ["--numeric-owner", "--same-permissions", "--xattrs", "--xattrs-include=*"]
    done = await anyio.run_process(argv, check=False)
    if done.returncode:
        raise _unavailable(
            f"tar failed: {done.stderr.decode(errors='replace')[-300:]}", "Check the free space of the cache."
        )
