"""The base environment that every generated task starts from.

`BASE_DOCKERFILE` is ordinary Dockerfile text, so any Docker with a registry can build it. Engines treat it as a
pre-seeded build cache entry: a Dockerfile that begins with exactly these lines starts from the local base image, which
is made once from the distribution's packages (see `sandbox.basebuild`) where no registry can be reached.

An environment may ask for more packages: one more line, written by `base_dockerfile` and read by `split_base`. Each set
of packages is a base of its own, made once; the plain one knows nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

BASE_PACKAGES: tuple[str, ...] = (
    "bash", "bc", "bzip2", "ca-certificates", "cron", "curl", "diffutils", "file", "findutils", "gawk", "git",
    "iproute2", "jq", "less", "make", "openssl", "patch", "procps", "psmisc", "python3", "python3-pytest",
    "python3-yaml", "rsync", "sqlite3", "tzdata", "unzip", "xxd", "xz-utils", "zip",
)  # fmt: skip
"""What a terminal task may expect to find. Sorted; a change is a new base image and a new cache key."""

BASE_DOCKERFILE = (
    "FROM debian:bookworm-slim\n"
    "RUN apt-get update && apt-get install -y --no-install-recommends "
    + " ".join(BASE_PACKAGES)
    + " && rm -rf /var/lib/apt/lists/* && useradd --create-home --uid 1000 --shell /bin/bash agent\n"
)
"""The first lines of every generated Dockerfile, to the letter."""

SERVICE_PACKAGES: tuple[str, ...] = ("fakeroot", "nginx-light", "openssh-server", "postgresql", "redis-server")
"""The services that tasks are made of, in one base: what asks for one of them gets them all. Cron is in every base;
fakeroot lets it run as an ordinary user."""

PACKAGE_NAME = r"[a-z0-9][a-z0-9.+-]+"
_INSTALL, _CLEAN = (
    "RUN apt-get update && apt-get install -y --no-install-recommends ",
    " && rm -rf /var/lib/apt/lists/*\n",
)
_ADDED = re.compile(re.escape(_INSTALL) + rf"({PACKAGE_NAME}(?: {PACKAGE_NAME})*)" + re.escape(_CLEAN))


def base_dockerfile(packages: Iterable[str] = ()) -> str:
    """The first lines of a Dockerfile that has these packages beside those of every base.

    Sets that `SERVICE_PACKAGES` covers are all that one set, so that they share a base.
    """
    added = set(packages) - set(BASE_PACKAGES)
    if added and added <= set(SERVICE_PACKAGES):
        added = set(SERVICE_PACKAGES)
    return BASE_DOCKERFILE + (f"{_INSTALL}{' '.join(sorted(added))}{_CLEAN}" if added else "")


def split_base(dockerfile: str) -> tuple[tuple[str, ...], str] | None:
    """The packages that a Dockerfile adds in its first lines, and what follows them; None when it begins otherwise."""
    if not dockerfile.startswith(BASE_DOCKERFILE):
        return None
    rest = dockerfile.removeprefix(BASE_DOCKERFILE)
    added = _ADDED.match(rest)
    return (tuple(added[1].split(" ")), rest[added.end() :]) if added else ((), rest)
