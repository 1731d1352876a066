"""A container engine of the test's own, which may be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.drills.remains import descendants
from tests.machine import absent

_SCRIPT = Path(__file__).parents[2] / "scripts" / "docker-engine.sh"


class Dockerd:
    """Started by the script that starts the test suite's engine, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = {**os.environ, "TERMLOOM_DOCKER_DIR": str(directory), "TERMLOOM_DOCKER_OWN": "1"}
        self.url = f"unix://{directory}/docker.sock"

    def start(self) -> None:
        command = [_SCRIPT, "start"]
        started = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if started.returncode:
            absent(f"no engine of its own: {started.stderr}")

    def kill(self) -> None:
        os.kill(int((self._directory / "dockerd.pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        subprocess.run([_SCRIPT, "stop"], env=self._environment, check=True, capture_output=True)

    def bury(self) -> None:
        """End what a killed engine forgets of itself: helpers of containers that it was making. They run nothing, or
        the sleeper that every sandbox begins with and that ends at its lifetime."""
        for pid in self._shims():
            idle = {"crun", "runc", "runc:[2:INIT]", "docker-init", "sleep"}
            running = [name for name in descendants(pid).values() if name not in idle]
            assert running == [], f"a forgotten container runs {running}"
            for each in (*descendants(pid), pid):
                with suppress(ProcessLookupError):  # it went with its parent
                    os.kill(each, signal.SIGKILL)

    def _shims(self) -> list[int]:
        found = []
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = command.read_bytes().split(b"\0")
                if b"shim" in words[0] and any(word.startswith(bytes(self._directory)) for word in words):
                    found.append(int(command.parent.name))
        return found

    def containers(self) -> list[str]:
        return self._asked("ps", "--all", "--format", "{{.Names}}")

    def networks(self) -> list[str]:
        return sorted(self._asked("network", "ls", "--format", "{{.Name}}"))

    def _asked(self, *arguments: str) -> list[str]:
        asked = subprocess.run(["docker", "--host", self.url, *arguments], capture_output=True, text=True, check=True)
        return asked.stdout.split()


@contextmanager
def own_dockerd() -> Iterator[Dockerd]:
    if os.getuid() != 0:
        absent("an engine of its own needs root")
    directory = Path(tempfile.mkdtemp(prefix="drill-"))  # short: sockets lie deep below it
    engine = Dockerd(directory)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        engine.bury()
        shutil.rmtree(directory)
