"""The base environment that every generated task starts from.

`BASE_DOCKERFILE` is ordinary Dockerfile text, so any Docker with a registry can build it. Engines treat it as a
pre-seeded build cache entry: a Dockerfile that begins with exactly these lines starts from the local base image, which
is made once from the distribution's packages (see `sandbox.basebuild`) where no registry can be reached.
"""

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
