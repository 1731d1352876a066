"""A real daemon, or a worker, as a process of its own, with the test's kind of job installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from runtime.daemon.client import DaemonClient, require_client

ROOT = Path(__file__).parents[3]
_PATIENCE_S = 60


def site(directory: Path, kind: Path) -> Path:
    """A directory for the path of Python that holds a kind of job, installed as other people's packages are."""
    info = directory / "loom-1.0.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        shutil.copy(kind, directory)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom\nVersion: 1.0\n")
        apart = "shed = loom_jobs:APART\n" if kind.stem == "loom_jobs" else ""
        (info / "entry_points.txt").write_text(f"[termloom.jobs]\n{kind.stem} = {kind.stem}:JOB\n{apart}")
    return directory


class Process:
    """One `termloom` process that says a line when it is ready."""

    kind = Path(__file__).with_name("loom_jobs.py")
    sandbox = "namespace"
    prelude = ""
    """What its Python does first."""

    def __init__(self, tmp_path: Path, *arguments: str, state: Path, ready: str, prefix: tuple[str, ...] = ()) -> None:
        """`prefix`: what starts it."""
        environment = {name: value for name, value in os.environ.items() if name != "TERMLOOM_STATE"}
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._child = subprocess.Popen(
            [*prefix, sys.executable, "-c", f"{self.prelude}\nfrom runtime.cli import main; main()", *arguments,
             "--sandbox", self.sandbox],
            cwd=ROOT, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": f"{ROOT}:{site(tmp_path / 'site', self.kind)}",
                 "TERMLOOM_STATE": str(state)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(ready,))
        self._reader.start()
        self._ready.wait(_PATIENCE_S)
        if not any(ready in line for line in self.lines):
            self.__exit__()
            raise AssertionError("".join(self.lines))

    def _read(self, ready: str) -> None:
        for line in self._child.stderr:
            self.lines.append(line)
            if ready in line:
                self._ready.set()
        self._ready.set()

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self._child.send_signal(how)
        code = self._child.wait(_PATIENCE_S)
        self._reader.join()
        self._child.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        if self._child.poll() is None:
            self.stop(signal.SIGKILL)
        elif not self._child.stderr.closed:
            self._reader.join()
            self._child.stderr.close()


class Daemon(Process):
    """`termloom serve` over a state directory."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.state = tmp_path / "state"
        listen = () if "--socket" in arguments else ("--port", "0")
        super().__init__(tmp_path, "serve", *listen, *arguments, state=self.state, ready="listening:")

    @property
    def client(self) -> DaemonClient:
        return require_client(self.state)

    @property
    def address(self) -> str:
        """With its token, as it is printed."""
        line = next(line for line in self.lines if "listening:" in line)
        return line.split("listening: ")[1].strip()


class WorkerProcess(Process):
    """`termloom work`."""

    def __init__(self, tmp_path: Path, name: str, url: str, *, prefix: tuple[str, ...] = ()) -> None:
        super().__init__(tmp_path, "work", "--bus", url, state=tmp_path / name, ready="working for", prefix=prefix)


async def submit(client: DaemonClient, out: Path, *, kind: str = "shop", **options: object) -> str:
    return (await client.post("jobs", body={"kind": kind, "options": {"out": str(out), **options}}))["job"]


async def end_of(client: DaemonClient, job: str) -> dict:
    """The job once it is over."""
    last = {}
    async for line in client.follow("jobs", job, "events"):
        last = line
    assert last["kind"] == "job", last
    return last["job"]


async def until(client: DaemonClient, job: str, kind: str, *, times: int = 1, stage: str = "", item: str = "") -> None:
    """Wait for events of a running job."""
    wanted = {name: value for name, value in {"kind": kind, "stage": stage, "item": item}.items() if value}
    last = {}
    async for line in client.follow("jobs", job, "events"):
        last = line
        times -= wanted.items() <= line.items()
        if times <= 0:
            return
    raise AssertionError(f"the job ended before {kind}: {last}")


def process_of(directory: Path) -> int:
    """The process that works apart on the run in a directory, by the lock that it holds."""
    lock = (directory / "process.lock").stat().st_ino
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next(int(fields[4]) for fields in held if fields[5].endswith(f":{lock}"))


def job_file(state: Path, job: str) -> dict:
    return json.loads((state / "daemon" / "jobs" / f"{job}.json").read_text())


def boards(count: int) -> list[list]:
    """What an undisturbed run of `count` items gives."""
    return [[f"{n:03d}", 2 * n] for n in range(count)]
