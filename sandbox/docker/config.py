"""What a container is created with. Pure.

Invariants:
- The first process is the engine's own init with a sleeper under it that belongs to root: the agent cannot kill it, and
  the sandbox ends by itself at its lifetime, whoever started it and whether or not they live.
- No capability but the profile's, no new privileges, no swap beyond memory, no network device but `lo`.
- In a grading sandbox the sleeper is the trusted interpreter: nothing of the frozen image runs before it was cleaned.

`NetworkDisabled` (beside network mode `none`) keeps the engine's network stack out of a start: half the cost, and none
of its lock. Its price, an empty /etc/hosts, is paid by the first process, which writes the file.

There is no disk quota that every storage driver offers; `disk_mb` bounds each single file instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.docker.client import ENGINE
from sandbox.engine import User
from sandbox.errors import BuildUnsupported
from sandbox.spec import AGENT_HOME, AGENT_UID, AGENT_USER, TRUSTED_DIR, Profile, Record, SandboxSpec
from sandbox.trusted import trusted_argv, trusted_shell

CAPABILITIES: Mapping[Profile, tuple[str, ...]] = {
    Profile.AGENT: (),
    Profile.BUILD: (
        "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "SETPCAP", "KILL", "NET_BIND_SERVICE",
        "SYS_CHROOT", "SETFCAP", "MKNOD",
    ),
    Profile.GRADE: ("DAC_OVERRIDE", "DAC_READ_SEARCH", "CHOWN", "FOWNER", "SETUID", "SETGID", "KILL"),
}  # fmt: skip
"""Of root in the sandbox; the agent has none in any profile."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPEN_FILES = 16384
HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\\n::1 localhost\\n"
_MIB = 1 << 20

_SLEEPER = f"printf '{HOSTS}' >/etc/hosts; exec /bin/sleep \"$1\""
_TRUSTED_SLEEPER = "import sys, time; time.sleep(float(sys.argv[1]))"

CLEAN_IMAGE = f"""
import os, shutil
for path in ("/etc/ld.so.preload", "/tests", "/logs"):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
with open("/etc/hosts", "w") as hosts:
    hosts.write("{HOSTS}")
"""
"""Run by the trusted interpreter before anything else in a grading sandbox: removes what would speak for the grader."""


class ImageFacts(Record, frozen=True):
    """What an image brings along."""

    env: dict[str, str]
    workdir: str
    volumes: tuple[str, ...] = ()
    """Directories that lie outside the container's file system, in each container anew."""

    @property
    def cwd(self) -> str:
        """Where processes start: the image's WORKDIR, else the agent's home."""
        return self.workdir or AGENT_HOME


def image_facts(inspected: Mapping[str, Any]) -> ImageFacts:
    """From the engine's answer about an image."""
    config = inspected.get("Config") or {}
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    return ImageFacts(
        env={name: value for name, _, value in pairs},
        workdir=config.get("WorkingDir") or "",
        volumes=tuple(sorted(config.get("Volumes") or ())),
    )


def volume_refusal(volumes: Sequence[str]) -> BuildUnsupported | None:
    """Why an image with these volumes is refused: a frozen image lacks what was written there, and there is no way to
    create a container without the volumes of its image."""
    if not volumes:
        return None
    what = f"an image with VOLUME {' '.join(volumes)}: what is written below it could not be graded"
    return BuildUnsupported(ENGINE, what, "Take VOLUME out, or start from an image that has none.")


def user_id(user: User) -> str:
    """As a number: an image of the user's own need not name the agent."""
    return "0:0" if user == "root" else f"{AGENT_UID}:{AGENT_UID}"


def process_env(spec: SandboxSpec, image: ImageFacts, user: User, env: Mapping[str, str]) -> list[str]:
    """The environment of a process: ours, then the image's, the spec's and the caller's, the later ones winning."""
    home, name = ("/root", "root") if user == "root" else (AGENT_HOME, AGENT_USER)
    own = {"PATH": PATH, "HOME": home, "USER": name, "LOGNAME": name, "LANG": "C.UTF-8", "TERM": "dumb"}
    return [f"{key}={value}" for key, value in {**own, **image.env, **spec.env, **env}.items()]


def shell(profile: Profile) -> Sequence[str]:
    """The POSIX shell that starts and kills processes: the trusted one where the image is not trusted."""
    return trusted_shell() if profile is Profile.GRADE else ("/bin/sh",)


def _first_process(spec: SandboxSpec) -> list[str]:
    lifetime = str(max(1, math.ceil(spec.limits.lifetime_s)))
    if spec.profile is Profile.GRADE:
        return [*trusted_argv(), "-c", _TRUSTED_SLEEPER, lifetime]
    return ["/bin/sh", "-c", _SLEEPER, "sh", lifetime]


def container_config(
    spec: SandboxSpec, image: ImageFacts, labels: Mapping[str, str], *, trusted_volume: str | None
) -> dict[str, Any]:
    """The body of the create request."""
    return {
        "Image": spec.image,
        "Entrypoint": [],
        "Cmd": _first_process(spec),
        "User": user_id("root"),
        "WorkingDir": image.cwd,
        "Hostname": HOSTNAME,
        "Labels": dict(labels),
        "NetworkDisabled": spec.network == "none",
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(spec, trusted_volume),
    }


def _host_config(spec: SandboxSpec, trusted_volume: str | None) -> dict[str, Any]:
    limits = spec.limits
    return {
        "Init": True,
        "NetworkMode": spec.network,
        "Memory": limits.memory_mb * _MIB,
        "MemorySwap": limits.memory_mb * _MIB,
        "PidsLimit": limits.pids,
        "NanoCpus": round(limits.cpus * 1e9),
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES[spec.profile]),
        "SecurityOpt": ["no-new-privileges"],
        "Ulimits": [
            _ulimit("fsize", limits.disk_mb * _MIB), _ulimit("nofile", OPEN_FILES), _ulimit("core", 0),
        ],
        "LogConfig": {"Type": "none"},
        "Mounts": [volume_mount(trusted_volume, read_only=True)] if trusted_volume else [],
    }  # fmt: skip


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def volume_mount(volume: str, *, read_only: bool) -> dict[str, Any]:
    """The trusted tree in its place."""
    return {
        "Type": "volume", "Source": volume, "Target": TRUSTED_DIR, "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }  # fmt: skip
