"""The trusted tree: an interpreter for grading that uses nothing of the sandbox it runs in.

It is one relocatable directory, made from the base root file system and mounted read-only at `TRUSTED_DIR` in grading
sandboxes: CPython with its standard library, pytest and PyYAML, a small POSIX shell, the dynamic loader, and every
shared library that any of these needs.

Invariants:
- The loader is started by name with its own library path and no cache; the interpreter runs isolated (`-I -S -B`).
- Files of the sandbox's root that the C library or OpenSSL would read by a compiled-in path and obey as code
  (`/etc/ld.so.preload`, `/etc/nsswitch.conf`, the gconv modules, OpenSSL's configuration) are not read: those paths are
  rewritten in the tree's own copies to names under `TRUSTED_DIR` that do not exist.
- What the tree needs is complete: a library that resolves outside the base root file system fails the making of it.

The tree protects the interpreter alone. A grader that runs the image's own programs relies on the engines, which delete
`/etc/ld.so.preload` of a frozen image before anything runs in a grading sandbox.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio

from sandbox.errors import EngineUnavailable
from sandbox.spec import TRUSTED_DIR

_LOADER = "lib/ld.so"
_REDIRECTED = (
    ("ld.so", "/etc/ld.so.preload"),
    ("libc.so.6", "/etc/nsswitch.conf"),
    ("libc.so.6", "/usr/lib/{triplet}/gconv"),
    ("libcrypto.so.3", "/usr/lib/ssl"),
)
"""(file of the tree, compiled-in path)."""
_LEFT_OUT = ("__pycache__", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "tkinter", "config-3.*")


def trusted_argv(trusted_dir: str = TRUSTED_DIR) -> list[str]:
    """What to put before the interpreter's arguments: `[*trusted_argv(), "-c", "..."]`."""
    return [*_loader_argv(trusted_dir), f"{trusted_dir}/bin/python3", "-I", "-S", "-B"]


def trusted_shell(trusted_dir: str = TRUSTED_DIR) -> list[str]:
    """A POSIX shell out of the sandbox's reach: `[*trusted_shell(), "-c", "..."]`."""
    return [*_loader_argv(trusted_dir), f"{trusted_dir}/bin/sh"]


def _loader_argv(trusted_dir: str) -> list[str]:
    return [f"{trusted_dir}/{_LOADER}", "--inhibit-cache", "--library-path", f"{trusted_dir}/lib"]


async def make_trusted(rootfs: Path, target: Path) -> None:
    """Make the tree at `target` from an unpacked base root file system of this machine's architecture.

    Raises: EngineUnavailable when the root file system lacks a part or is of another kind.
    """
    python = _only(rootfs.glob("usr/bin/python3.[0-9]*"), "python3")
    loader = _only(rootfs.glob("usr/lib/*-linux-gnu*/ld-linux-*.so.*"), "dynamic loader")
    stdlib = target / "lib" / python.name
    await anyio.to_thread.run_sync(_copy_programs, rootfs, python, target)
    await anyio.to_thread.run_sync(_copy_modules, rootfs, python.name, stdlib)
    needing = [python, rootfs / "usr/bin/dash", *stdlib.rglob("*.so")]
    libraries = {path for binary in needing for path in await _libraries(rootfs, loader, binary)}
    for library in sorted(libraries):
        shutil.copy(library, target / "lib" / library.name)
    shutil.copy(loader, target / _LOADER)
    for name, path in _REDIRECTED:
        _redirect(target / "lib" / name, path.format(triplet=loader.parent.name).encode())
    await _compile(target, stdlib)


def _only(found: Iterator[Path], what: str) -> Path:
    files = [path for path in found if not path.is_symlink() and re.fullmatch(r"[\w.+-]*\d", path.name)]
    if len(files) != 1:
        raise _incomplete(f"{len(files)} candidates for its {what}")
    return files[0]


def _incomplete(reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        "base environment",
        f"no trusted interpreter can be made from it: {reason}",
        "Remove the cached base environment and let it be made again.",
    )


def _copy_programs(rootfs: Path, python: Path, target: Path) -> None:
    for directory in ("bin", "lib"):
        (target / directory).mkdir(parents=True)
    shutil.copy(python, target / "bin/python3")
    shutil.copy(rootfs / "usr/bin/dash", target / "bin/sh")


def _copy_modules(rootfs: Path, python: str, stdlib: Path) -> None:
    """The standard library, and the distribution's packages in it: without `site`, it alone is on the path."""
    leave_out = shutil.ignore_patterns(*_LEFT_OUT)
    for source in (rootfs / "usr/lib" / python, rootfs / "usr/lib/python3/dist-packages"):
        shutil.copytree(source, stdlib, ignore=leave_out, symlinks=True, dirs_exist_ok=True)
    for path in stdlib.rglob("*"):
        if path.is_symlink():
            path.unlink()


async def _libraries(rootfs: Path, loader: Path, binary: Path) -> list[Path]:
    """What the loader maps for `binary`, all of it inside `rootfs`."""
    command = [str(loader), "--inhibit-cache", "--library-path", str(loader.parent), "--list", str(binary)]
    done = await anyio.run_process(command, check=False, env={})
    if done.returncode:
        raise _incomplete(done.stderr.decode(errors="replace").strip())
    paths = [Path(path) for path in re.findall(r"=> (/\S+) \(0x", done.stdout.decode())]
    strangers = [path for path in paths if not path.resolve().is_relative_to(rootfs.resolve())]
    if strangers:
        raise _incomplete(f"{binary.name} needs {strangers[0].name}, which is not in it")
    return [path for path in paths if path.name != loader.name]


def _redirect(library: Path, path: bytes) -> None:
    """Rewrite `path` in a binary to a name of the same length that never exists: the tree has no such entries."""
    data = library.read_bytes()
    if path not in data:
        raise _incomplete(f"{library.name} does not hold {path.decode()}")
    library.write_bytes(data.replace(path, f"{TRUSTED_DIR}/".encode().ljust(len(path), b"x")))


async def _compile(target: Path, stdlib: Path) -> None:
    """Bytecode beside the sources, never checked against them: the tree is read-only where it is used."""
    command = [
        *trusted_argv(str(target)), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash",
        "-s", str(target), "-p", TRUSTED_DIR, str(stdlib),
    ]  # fmt: skip
    done = await anyio.run_process(command, check=False, env={})
    if done.returncode:
        raise _incomplete((done.stdout + done.stderr).decode(errors="replace").strip()[-500:])
