"""A place to try pieces for real: their files, their shell commands and their checks in an unpacked base file system.

`Ground` copies nothing and leaves nothing: each trial runs in its own mount, process and network namespaces on an
overlay whose changes live in memory, commands as the agent user, checks as root from outside the agent's shell. One
trial plays any number of rounds, each from the same start. Services run during a round, are killed with everything else
at its end, and started again for the checks, as in grading. `problems_of` holds a piece to what every family promises.

Needs root and an unpacked base environment.
"""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from generators.messages import Mistake
from generators.procedural.compose import CONTEXT_DIR, ProceduralTask, setup_script
from generators.procedural.family import Family, Piece, Place
from generators.procedural.prelude import PRELUDE
from sandbox.services import Service, start_script
from sandbox.spec import AGENT_HOME, File

_ENTER = """
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$0/upper,workdir=$0/work" "$0/root"
mount -t proc proc "$0/root/proc"
mount --rbind /dev "$0/root/dev"
ip link set lo up
exec chroot "$0/root" /usr/bin/python3 -I -c "$2"
"""

_INSIDE = r"""
import base64, json, os, shutil, signal, subprocess, sys, traceback

HOME, START = "/home/agent", "/srv/start"
KEPT = {HOME: "/home", "/tmp": "/tmp", "/var/spool/cron": "/cron"}
AGENT = dict(user=1000, group=1000, extra_groups=[])
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}
SHELL = 'for c in "$@"; do eval "$c" </dev/null; echo "exit $?" >&2; done'


def bash(*argv, timeout=60):
    quiet = dict(stdin=subprocess.DEVNULL, capture_output=True)
    return subprocess.run(["bash", *argv], cwd=HOME, env=ENV, timeout=timeout, **quiet, **AGENT)


def lay_out(files):
    for file in files:
        path = file["path"]
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        while folder != HOME and len(folder) > len(HOME):
            os.chown(folder, 1000, 1000)
            folder = os.path.dirname(folder)
        with open(path, "wb") as out:
            out.write(base64.b64decode(file["data"]))
        os.chmod(path, file["mode"])
        os.chown(path, 1000, 1000)


def set_up(scripts):
    for user, script in scripts:
        if user == "root":
            done = subprocess.run(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True)
        else:
            done = bash("-c", script)
        if done.returncode:
            return "exit code %d: %s" % (done.returncode, done.stderr.decode(errors="replace"))
    return ""


def of_the_agent():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == 1000:
                yield int(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass


def kill_all():
    # Until they are gone, and with them the ports and locks that the next start wants: orphans are children of ours.
    while pids := list(of_the_agent()):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.waitpid(-1, 0)


def start_services():
    if order["services"]:
        done = bash("-c", order["services"], "services", "/bin/true")
        return done.stderr
    return b""


def reset():
    kill_all()
    for folder, saved in KEPT.items():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["cp", "-a", START + saved, folder], check=True)


def check(module):
    names = {}
    try:
        exec(compile(module, "checks", "exec"), names)
    except Exception:
        return {"collection": traceback.format_exc()}
    outcome = {}
    for name, function in list(names.items()):
        if not name.startswith("test_"):
            continue
        try:
            function()
            outcome[name] = ""
        except AssertionError as error:
            outcome[name] = "failed: " + str(error)
        except BaseException as error:
            outcome[name] = "error: " + repr(error)
    return outcome


order = json.load(sys.stdin)
os.umask(0o022)
lay_out(order["files"])
trouble = set_up(order["setup"])
rounds = []
if not trouble:
    os.mkdir(START)
    for folder, saved in KEPT.items():
        subprocess.run(["cp", "-a", folder, START + saved], check=True)
    for number, commands in enumerate(order["rounds"]):
        if number:
            reset()
        log = start_services()
        done = bash("--noprofile", "--norc", "-c", SHELL, "bash", *commands)
        log += done.stdout + done.stderr
        if order["services"]:
            kill_all()
            log += start_services()
        outcome = check(order["checks"])
        rounds.append({"outcome": outcome, "log": log[-2000:].decode(errors="replace")})
        if number == 0 and not commands:
            rounds[0]["initial"] = check(order["initial_checks"])
print(json.dumps({"trouble": trouble, "rounds": rounds}))
"""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One way through: outcome by check (empty, `failed: ...` or `error: ...`), and the shell's output."""

    outcome: dict[str, str]
    log: str
    initial: dict[str, str] | None = None
    """Outcome of the initial checks; only in a first round without commands."""

    @property
    def passed(self) -> bool:
        return bool(self.outcome) and not any(self.outcome.values())

    @property
    def failures(self) -> list[str]:
        return [f"{name} {text}" for name, text in self.outcome.items() if text]


class SetupFailed(Exception):
    """The piece's own set-up did not run."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"set-up failed: {log}")


class Ground:
    """Runs trials over one unpacked base file system."""

    def __init__(self, rootfs: Path, scratch: Path) -> None:
        self._rootfs, self._scratch = rootfs, scratch

    def try_rounds(
        self,
        *,
        files: Iterable[File],
        setup: Sequence[str],
        rounds: Sequence[Sequence[str]],
        checks: str,
        initial_checks: str,
        root_setup: Sequence[str] = (),
        services: Sequence[Service] = (),
        timeout_s: float = 240.0,
    ) -> list[Round]:
        """Play each round from the same start. Files have absolute paths. Raises: SetupFailed."""
        order = {
            "files": [{"path": f.path, "data": base64.b64encode(f.data).decode(), "mode": f.mode} for f in files],
            "setup": [*(("root", script) for script in root_setup), *(("agent", script) for script in setup)],
            "services": start_script(services) if services else "",
            "rounds": [list(commands) for commands in rounds],
            "checks": checks,
            "initial_checks": initial_checks,
        }
        unshare = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
        done = subprocess.run(
            [*unshare, "bash", "-c", _ENTER, str(self._scratch), str(self._rootfs), _INSIDE],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        result = json.loads(done.stdout)
        if result["trouble"]:
            raise SetupFailed(result["trouble"])
        return [Round(**fields) for fields in result["rounds"]]


def draw(family: Family, seed: int, depth: int) -> tuple[Piece, Place]:
    """A piece in a place whose name depends on nothing but the seed."""
    place = Place(directory=f"{AGENT_HOME}/work-{seed}")
    return family.draw(random.Random(seed), depth, place), place


def problems_of(ground: Ground, family: Family, seed: int, depth: int) -> list[str]:
    """What is wrong with the piece that this family draws: every promise of a family, for real."""
    piece, place = draw(family, seed, depth)
    return [
        *_drawing_problems(family, seed, depth, piece),
        *_form_problems(piece, depth, place),
        *_played_problems(ground, piece, place),
    ]


def _drawing_problems(family: Family, seed: int, depth: int, piece: Piece) -> Iterable[str]:
    if draw(family, seed, depth)[0] != piece:
        yield "drawing twice gives different pieces"
    place = Place(directory=f"{AGENT_HOME}/work-{seed}")
    if family.draw(random.Random(seed + 1), depth, place).files == piece.files and piece.files:
        yield "two seeds give the same files"
    if family.draw(random.Random(seed + 1), depth, place).commands == piece.commands:
        yield "two seeds give the same commands"


def _form_problems(piece: Piece, depth: int, place: Place) -> Iterable[str]:
    if not depth <= len(piece.commands) <= depth + 1:
        yield f"depth {depth} has {len(piece.commands)} commands"
    if len(piece.thoughts) != len(piece.commands):
        yield "thoughts and commands differ in number"
    if len(set(piece.asks)) < 3:
        yield "fewer than three wordings"
    if len(piece.mistakes) < 3 or len({mistake.error_type for mistake in piece.mistakes}) < 2:
        yield "fewer than three mistakes or two error types"
    if bad := [mistake.step for mistake in piece.mistakes if not 0 <= mistake.step < len(piece.commands)]:
        yield f"mistakes at steps that do not exist: {bad}"
    if bad_paths := [
        file.path for file in piece.files if not file.path.startswith(place.directory + "/") or file.owner != "agent"
    ]:
        yield f"files outside the place or not the agent's: {bad_paths}"
    for ask in piece.asks:
        yield from (f"the ask does not state {path}: {ask[:200]}" for path in unstated(ask, piece))
    texts = [*piece.asks, *(file.data.decode(errors="replace") for file in piece.files)]
    for text in piece.truth:
        if len(text) < 6:
            yield f"truth too short to look for: {text!r}"
        if any(text in given for given in texts):
            yield f"truth is given away: {text[:80]!r}"


def play_task(ground: Ground, task: ProceduralTask, ways: Sequence[Sequence[str]]) -> list[Round]:
    """Play a whole task's ways; the first round is always the untouched start."""
    run_lines = [line for line in task.environment.dockerfile.splitlines() if line.startswith("RUN [")]
    return ground.try_rounds(
        files=[
            replace(file, path=f"{AGENT_HOME}/{file.path.removeprefix(CONTEXT_DIR + '/')}")
            for file in task.environment.files
        ],
        setup=[json.loads(line.removeprefix("RUN "))[-1] for line in run_lines],
        rounds=[(), *ways],
        checks=task.final_tests,
        initial_checks=task.environment.initial_tests,
    )


def unstated(ask: str, piece: Piece) -> list[str]:
    """Paths in the checks that are neither in the ask nor inputs."""
    stated = set(re.findall(rf"{AGENT_HOME}/[\w./+-]*[\w+-]", ask)) | {file.path for file in piece.files}
    stated |= {str(parent) for path in stated for parent in Path(path).parents}
    return sorted(set(re.findall(rf"'({AGENT_HOME}/[^'\n]*)'", "\n".join(piece.checks))) - stated)


def wrong_way(piece: Piece, mistake: Mistake) -> tuple[str, ...]:
    """The mistake in place of its step, unnoticed."""
    return (*piece.commands[: mistake.step], mistake.command, *piece.commands[mistake.step + 1 :])


def way_back(piece: Piece, mistake: Mistake) -> tuple[str, ...]:
    """The mistake, its repair, then the right step and the rest."""
    return (*piece.commands[: mistake.step], mistake.command, *mistake.repair, *piece.commands[mistake.step :])


def _played_problems(ground: Ground, piece: Piece, place: Place) -> Iterable[str]:
    ways = [wrong_way(piece, mistake) for mistake in piece.mistakes]
    back = [way_back(piece, mistake) for mistake in piece.mistakes]
    try:
        start, reference, *others = ground.try_rounds(
            files=piece.files,
            setup=[setup_script(piece, place)],
            root_setup=piece.root_setup,
            services=piece.services,
            rounds=[(), piece.commands, *ways, *back],
            checks=PRELUDE + "\n\n" + "\n\n".join(piece.checks),
            initial_checks=PRELUDE + "\n\n" + "\n\n".join(piece.initial_checks),
        )
    except SetupFailed as error:
        yield str(error)
        return
    assert start.initial is not None
    yield from (f"initial: {name} {text}" for name, text in start.initial.items() if text)
    if not start.initial:
        yield "no initial check"
    if start.passed:
        yield "every check passes on the untouched environment"
    if not reference.passed:
        yield f"the reference fails: {reference.failures} {reference.log}"
    for played in (start, reference, *others):
        yield from (
            f"not by assertion: {name} {text}" for name, text in played.outcome.items() if text.startswith("error")
        )
    for mistake, wrong, right in zip(piece.mistakes, others[: len(ways)], others[len(ways) :], strict=True):
        if wrong.passed:
            yield f"a mistake passes: {mistake.command}"
        if not right.passed:
            yield f"no way back from {mistake.command}: {right.failures} {right.log}"
