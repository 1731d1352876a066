"""The base environment: made once, complete or absent, with a trusted interpreter that needs nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from sandbox import basebuild
from sandbox.base import BASE_PACKAGES
from sandbox.basebuild import (
    Base,
    MakingFailed,
    base_digest,
    default_cache,
    ensure_base,
    mmdebstrap_argv,
    trusted_argv,
    trusted_shell,
)
from sandbox.errors import EngineFault, EngineUnavailable, PackagesMissing


@pytest.fixture(scope="session")
def base() -> Base:
    """The cached one; made for real when there is none."""
    return anyio.run(partial(ensure_base, cache=default_cache(os.environ), progress=print))


@pytest.fixture
def no_builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with tar, and without mmdebstrap and apt-get."""
    programs = tmp_path / "bin"
    programs.mkdir()
    tar = shutil.which("tar")
    assert tar is not None
    (programs / "tar").symlink_to(tar)
    monkeypatch.setenv("PATH", str(programs))


async def run(*argv: str) -> str:
    return (await anyio.run_process(argv, env={})).stdout.decode()


def test_base_has_the_agent_and_nothing_of_this_machine(base: Base) -> None:
    assert "agent:x:1000:1000::/home/agent:/bin/bash" in (base.rootfs / "etc/passwd").read_text()
    assert (base.rootfs / "home/agent").stat().st_uid == (1000 if os.geteuid() == 0 else os.geteuid())
    for name in ("etc/resolv.conf", "etc/hostname", "etc/machine-id"):
        assert not (base.rootfs / name).exists(), name
    assert list((base.rootfs / "dev").iterdir()) == []
    assert [path.name for path in (base.rootfs / "var/lib/apt/lists").rglob("*") if path.is_file()] == ["lock"]


async def test_trusted_interpreter_has_what_graders_use(base: Base) -> None:
    modules = "pytest, sqlite3, ssl, hashlib, json, yaml, lzma, bz2, zlib, ctypes, decimal, csv, zoneinfo, uuid, curses"
    code = f"import sys, {modules}; print(sys.prefix, *sys.path, sys.flags.isolated, pytest.__cached__)"
    prefix, *path, isolated, cached = (await run(*trusted_argv(str(base.trusted)), "-c", code)).split()
    assert prefix == str(base.trusted)
    assert all(entry.startswith(f"{base.trusted}/") for entry in path)
    assert isolated == "1"
    assert Path(cached).is_file()


async def test_trusted_interpreter_maps_no_library_from_elsewhere(base: Base) -> None:
    code = (
        "import ssl, sqlite3, lzma, ctypes, readline, yaml, curses, socket, pwd, codecs; pwd.getpwuid(0);"
        "socket.getaddrinfo('localhost', 1); ssl.create_default_context();"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if ' r-xp ' in line and '/' in line})"
    )
    mapped = (await run(*trusted_argv(str(base.trusted)), "-c", code)).split()
    assert len(mapped) > 10
    assert [path for path in mapped if not path.startswith(f"{base.trusted}/")] == []


def test_trusted_copies_do_not_name_the_files_they_must_not_read(base: Base) -> None:
    loader, libc = (base.trusted / "lib/ld.so").read_bytes(), (base.trusted / "lib/libc.so.6").read_bytes()
    assert b"/etc/ld.so.preload" not in loader
    assert b"/etc/nsswitch.conf" not in libc
    assert b"-linux-gnu/gconv" not in libc


async def test_trusted_shell_runs(base: Base) -> None:
    assert await run(*trusted_shell(str(base.trusted)), "-c", 'echo "$((6 * 7))"') == "42\n"


def test_command_names_every_package_and_the_given_source(tmp_path: Path) -> None:
    argv = mmdebstrap_argv(tmp_path / "x.tar", Path("/etc/apt/some.sources"))
    assert f"--include={','.join(BASE_PACKAGES)}" in argv
    assert argv[-3:] == ["bookworm", str(tmp_path / "x.tar"), "/etc/apt/some.sources"]
    assert mmdebstrap_argv(tmp_path / "x.tar", None)[-1] == str(tmp_path / "x.tar")


def test_cache_directory_follows_the_environment() -> None:
    assert default_cache({"TERMLOOM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/termloom")
    assert default_cache({}) == Path.home() / ".cache/termloom"


@pytest.mark.usefixtures("no_builder")
async def test_two_who_need_it_make_it_once(base: Base, tmp_path: Path) -> None:
    cache, made, bases = tmp_path / "cache", [], []
    leftover = cache / "base" / "partial-dead"
    leftover.mkdir(parents=True)

    async def copy(tar: Path, dockerfile: str) -> None:
        made.append(tar)
        await anyio.to_thread.run_sync(shutil.copy, base.tar, tar)

    async def need() -> None:
        bases.append(await ensure_base(cache=cache, progress=told.append, otherwise=copy))

    told: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(need)
        tasks.start_soon(need)
    assert len(made) == 1
    assert bases[0] == bases[1]
    assert any("waiting for another" in line for line in told)
    assert sorted(path.name for path in (cache / "base").iterdir()) == sorted([base_digest(), "lock"])
    assert await run(*trusted_argv(str(bases[0].trusted)), "-c", "print(1)") == "1\n"


@pytest.mark.usefixtures("no_builder")
async def test_failure_leaves_nothing_and_the_next_try_is_free(tmp_path: Path) -> None:
    async def fail(tar: Path, dockerfile: str) -> None:
        tar.write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ensure_base(cache=tmp_path, progress=print, otherwise=fail)
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["lock"]


@pytest.mark.usefixtures("no_builder")
async def test_without_any_way_the_remedy_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="apt-get install mmdebstrap"):
        await ensure_base(cache=tmp_path, progress=print)


async def test_waiting_for_another_process_can_be_cancelled(tmp_path: Path) -> None:
    async def hang(tar: Path, dockerfile: str) -> None:
        holding.set()
        await anyio.sleep_forever()

    def told(line: str) -> None:
        if "waiting" in line:
            waiting.cancel()

    holding, waiting = anyio.Event(), anyio.CancelScope()
    with anyio.fail_after(20), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(ensure_base, cache=tmp_path, progress=print, otherwise=hang))
            await holding.wait()
            with waiting:
                await ensure_base(cache=tmp_path, progress=told, otherwise=hang)
            assert waiting.cancelled_caught
            tasks.cancel_scope.cancel()


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Puts a script in the place of mmdebstrap; returns the cache to make the base in."""

    def place(script: str) -> Path:
        program = tmp_path / "mmdebstrap"
        program.write_text(f"#!/bin/bash\n{script}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "cache"

    return place


async def test_a_builder_that_ends_its_whole_group_does_not_end_us(builder: Callable[[str], Path]) -> None:
    cache = builder("echo 'E: no space'; kill -TERM 0; sleep 60")
    with anyio.fail_after(30), pytest.raises(EngineUnavailable, match="failed with exit code -15: E: no space"):
        await ensure_base(cache=cache, progress=print)


async def test_a_cancelled_builder_and_its_children_clean_up(builder: Callable[[str], Path], tmp_path: Path) -> None:
    cache = builder(f"trap 'touch {tmp_path}/clean; exit 1' TERM; echo 'I: began'; sleep 60 & wait; wait")
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        await ensure_base(cache=cache, progress=lambda line: scope.cancel() if line == "began" else None)
    assert scope.cancelled_caught
    assert (tmp_path / "clean").exists()
    assert [path.name for path in (cache / "base").iterdir()] == ["lock"]


async def test_a_cache_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineUnavailable, match=r"Not a directory.*choose another cache"):
        await ensure_base(cache=tmp_path / "file", progress=print)


async def test_where_mmdebstrap_fails_the_engine_makes_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no way >&2\nexit 25\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    told: list[str] = []

    async def otherwise(tar: Path, dockerfile: str) -> None:
        tar.write_bytes(b"made by the engine")

    await basebuild._make_tar(tmp_path / "base.tar", (), told.append, otherwise)
    assert (tmp_path / "base.tar").read_bytes() == b"made by the engine"
    assert "exit code 25" in told[-1]


@pytest.fixture
def plain_cache(tmp_path: Path) -> Path:
    """A cache that has the plain base."""
    (tmp_path / "cache" / "base" / base_digest()).mkdir(parents=True)
    return tmp_path / "cache"


@pytest.mark.usefixtures("no_builder")
async def test_packages_that_the_engine_does_not_find_either_are_no_fault_of_the_engine(plain_cache: Path) -> None:
    async def otherwise(tar: Path, dockerfile: str) -> None:
        raise MakingFailed("RUN failed", "E: Unable to locate package nosuch", "")

    with pytest.raises(PackagesMissing, match="nosuch cannot be installed"):
        await ensure_base(("nosuch",), cache=plain_cache, progress=print, otherwise=otherwise)


async def test_packages_over_which_the_builder_fails_or_takes_too_long_end_no_run(
    builder: Callable[[str], Path], plain_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder("echo 'dpkg: error processing package odd'; exit 25")
    with pytest.raises(PackagesMissing, match="exit code 25\ndpkg: error processing package odd"):
        await ensure_base(("odd",), cache=plain_cache, progress=print)
    builder("sleep 600")
    monkeypatch.setattr(basebuild, "_DEADLINE_S", 0.5)
    with anyio.fail_after(30), pytest.raises(PackagesMissing, match=r"not made within 0\.5 s"):
        await ensure_base(("odd",), cache=plain_cache, progress=print)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'E: Failed to fetch http://deb/odd.deb  Could not connect'; echo 'E: apt-get failed'; exit 25",
        "echo 'dpkg-deb: failed to write: No space left on device'; for n in {1..12}; do echo; done; exit 1",
        "exit 0",
    ],
    ids=["network", "disk", "no tar"],
)
async def test_a_network_or_a_disk_that_fails_over_packages_is_a_fault_to_try_again(
    builder: Callable[[str], Path], plain_cache: Path, script: str
) -> None:
    builder(script)
    with pytest.raises(EngineFault, match="making it with odd failed"):
        await ensure_base(("odd",), cache=plain_cache, progress=print)
