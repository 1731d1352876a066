"""The command line: lazy commands, one clear line for each failure, Ctrl-C three times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = '''
import sys
import threading
import anyio
from runtime.errors import StoreError, TaskInvalid, UserError
from runtime.interrupts import interrupts
from runtime.options import Common
from sandbox.errors import EngineUnavailable

sys.stderr.write("imported\\n")


async def weave(*, count: int = 3, common: Common = Common()) -> int:
    """Weave some cloth.

    More about it.
    """
    settings = common.settings(options={"generate.count": count})
    if common.dry_run:
        return common.show(settings)
    print("wove", settings.generate.count, "build", settings.limits.build)
    return 4


def fail(*, how: str) -> None:
    """Fail somehow."""
    raise {
        "user": UserError("loom.toml", "no thread", "Buy some"),
        "engine": ExceptionGroup("g", [EngineUnavailable("docker", "no socket", "Start it")]),
        "store": StoreError("s.db", "locked", "Wait"),
        "extra": ModuleNotFoundError("No module named 'torch'", name="torch"),
        "module": ModuleNotFoundError("No module named 'tosh'", name="tosh"),
        "steering": TaskInvalid("t", ["\\x1b]0;pwned\\x07 is no name"]),
        "disk": ExceptionGroup("g", [OSError(28, "No space left on device", "/full/x")]),
        "path": FileNotFoundError(2, "No such file or directory", "/not/there"),
        "bug": ZeroDivisionError("a bug"),
    }[how]


def abandon() -> int:
    """Give up a thread in the middle of its work."""
    threading.Thread(target=threading.Event().wait).start()
    return 3


async def hang(*, ignore: bool = False) -> None:
    """Work until stopped."""
    with interrupts(cleanup="termloom gc --run 7") as stop:
        drained = anyio.Event()
        stop.on_drain(drained.set)
        print("working", flush=True)
        try:
            await drained.wait()
            print("drained", flush=True)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                print("cleaning", flush=True)
                if ignore:
                    await anyio.sleep_forever()
                print("clean", flush=True)
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A package with commands, installed the way that other people's packages are."""
    (tmp_path / "loom_commands.py").write_text(COMMANDS)
    info = tmp_path / "loom-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom\nVersion: 1.0\n")
    names = "".join(f"{name} = loom_commands:{name}\n" for name in ("weave", "fail", "abandon", "hang"))
    (info / "entry_points.txt").write_text(f"[termloom.commands]\n{names}gone = no_such_module:gone\n")
    return tmp_path


def start(site: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TERMLOOM_")}
    return subprocess.Popen(
        [sys.executable, "-c", "from runtime.cli import main; main()", *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**environment, "PYTHONPATH": f"{ROOT}:{site}", **options},
    )  # fmt: skip


@contextmanager
def started(site: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = start(site, *arguments)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def termloom(site: Path, *arguments: str, **options: object) -> tuple[int, str, str]:
    child = start(site, *arguments, **options)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def test_help_lists_commands_without_importing_them(site: Path):
    code, out, err = termloom(site, "--help")
    assert (code, err) == (0, "")
    assert "Weave some cloth." in out
    assert "gone" in out


def test_help_loads_nothing_heavy(site: Path):
    script = (
        "import sys; from runtime.cli import run; run(['--help'])\n"
        "heavy = {'openai', 'aiodocker', 'aiohttp', 'nats', 'torch', 'pytest', 'starlette', 'markdown_it', 'jinja2'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_told(site: Path):
    code, out, _ = termloom(site, "--version")
    assert (code, out.split()[0]) == (0, "termloom")


def test_a_command_runs_with_options_over_settings(site: Path):
    code, out, _ = termloom(site, "weave", "--count", "5", "--set", "limits.build=7", "--set", "limits.run=1")
    assert (code, out) == (4, "wove 5 build 7\n")


def test_a_config_file_and_the_environment_are_read(site: Path):
    (site / "c.toml").write_text("[limits]\nbuild = 9\n")
    assert "build 9" in termloom(site, "weave", "--config", str(site / "c.toml"))[1]
    assert "build 8" in termloom(site, "weave", "--config", str(site / "c.toml"), TERMLOOM_LIMITS__BUILD="8")[1]


def test_a_dry_run_shows_the_settings_in_force_with_secrets_masked(site: Path):
    secret = {"TERMLOOM_CHAT__API_KEY": "sk-secret"}
    code, out, _ = termloom(site, "weave", "--dry-run", "--set", "limits.build=7", **secret)
    assert code == 0
    assert "limits.build = 7\n" in out
    assert "sk-secret" not in out
    code, out, _ = termloom(site, "weave", "--dry-run", "--json", "--count", "6", **secret)
    assert json.loads(out)["generate.count"] == 6
    assert "sk-secret" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["weav"], 2, "unknown command 'weav'. Did you mean 'weave'?"),
        (["--bogus"], 2, "unknown command '--bogus'. See termloom --help"),
        (["weave", "--cout", "3"], 2, "Unknown option: --cout. Did you mean --count?"),
        (["weave", "--count", "many"], 2, '"many"'),
        (["weave", "--set", "limits.bild=3"], 2, "Did you mean 'limits.build'?"),
        (["weave", "--set", "limits.build=0"], 2, "--set limits.build: '0' is refused"),
        (["fail", "--how", "user"], 2, "loom.toml: no thread. Buy some"),
        (["fail", "--how", "engine"], 1, "sandbox engine 'docker' is not available: no socket. Start it"),
        (["fail", "--how", "store"], 1, "s.db: locked. Wait"),
        (["fail", "--how", "extra"], 2, "torch: is not installed; the extra 'train' brings it"),
        (["fail", "--how", "steering"], 2, "t: \N{REPLACEMENT CHARACTER}]0;pwned\N{REPLACEMENT CHARACTER} is no name"),
        (["fail", "--how", "disk"], 1, "/full/x: No space left on device. Free space there, then resume"),
    ],
)
def test_each_failure_is_one_clear_line(site: Path, arguments: list[str], code: int, message: str):
    got, out, err = termloom(site, *arguments)
    (line,) = [line for line in err.splitlines() if line != "imported"]
    assert (got, out) == (code, "")
    assert line.startswith("termloom: ")
    assert message in line


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("bug", "ZeroDivisionError: a bug"),
        ("path", "No such file or directory: '/not/there'"),
        ("module", "No module named 'tosh'"),
    ],
)
def test_a_bug_shows_its_traceback(site: Path, how: str, last: str):
    code, _, err = termloom(site, "fail", "--how", how)
    assert code == 1
    assert "Traceback" in err
    assert last in err


def weave_with(site: Path, redirections: str) -> subprocess.CompletedProcess[str]:
    """Run `weave`, a command that prints and returns 4, under a shell's redirections."""
    command = f"{sys.executable} -c 'from runtime.cli import main; main()' weave {redirections}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{site}"},
    )  # fmt: skip


def test_standard_streams_that_are_closed_are_as_good_as_dev_null(site: Path):
    for redirections in (">&-", "<&-", "2>&-", "<&- >&- 2>&-"):
        done = weave_with(site, redirections)
        assert (done.returncode, done.stderr.replace("imported\n", "")) == (4, "")


def test_a_reader_that_leaves_and_a_full_disk_are_failures_without_a_traceback(site: Path):
    for redirections in ("| true", ">/dev/full"):
        done = weave_with(site, redirections)
        assert done.returncode in (1, 4)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_what_the_terminal_cannot_show_is_a_question_mark(site: Path):
    code, out, err = termloom(site, "fail", "--how", "ÿ", PYTHONIOENCODING="ascii")
    assert (code, out) == (1, "")
    assert "KeyError: '?'" in err


def test_a_thread_that_was_given_up_keeps_no_command_alive(site: Path):
    assert termloom(site, "abandon")[0] == 3


def test_a_signal_does_what_it_asks_for_though_nobody_reads_what_is_said(site: Path):
    with started(site, "hang") as child:
        assert child.stdout.readline() == "working\n"
        child.stderr.close()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "drained\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "cleaning\n"
        child.stderr = None


def test_the_first_signal_drains_and_the_second_stops_and_cleans_up(site: Path):
    with started(site, "hang") as child:
        assert child.stdout.readline() == "working\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "drained\n"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (130, "cleaning\nclean\n")
        assert "termloom gc --run 7" in err.splitlines()[-1]


def test_the_third_signal_leaves_and_prints_the_command_that_cleans_up(site: Path):
    with started(site, "hang", "--ignore") as child:
        for line in ("working\n", "drained\n", "cleaning\n"):
            assert child.stdout.readline() == line
            child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 130
        assert err.splitlines()[-1] == "termloom: left without cleaning up; run 'termloom gc --run 7'"
