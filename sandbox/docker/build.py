"""Builds images from a Dockerfile by the engine's classic builder.

Invariants:
- A Dockerfile that begins with the base lines to the letter starts from the local base image: those lines are replaced
  by one FROM, and nothing else is touched. Any other Dockerfile goes to the engine as it is.
- An image is named by the hash of all that goes into it; what is named is not built again.
- A failing step is a result with the step, its exit code and the end of the log. A FROM that nobody has, or that is
  denied, is `BuildUnsupported`: no retry and no correction of the steps would help. Any other trouble with a FROM, and
  a full disk, is a fault: it may pass.

RUN steps have no network unless the context asks for it. Where package indexes are behind a certificate authority of
one's own, a step that uses the network brings the bundle along: COPY it in and point PIP_CERT, SSL_CERT_FILE or
REQUESTS_CA_BUNDLE at it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import anyio

from sandbox.base import split_base
from sandbox.basebuild import Packages
from sandbox.docker import archive, labels
from sandbox.docker.client import ENGINE, Client, answering, json_lines
from sandbox.docker.images import image_exists
from sandbox.docker.labels import BASE_REPOSITORY, BUILD_REPOSITORY
from sandbox.errors import BuildUnsupported, EngineFault
from sandbox.spec import BuildContext, BuildResult, File, Limits

_STEP = re.compile(r"Step \d+/\d+ : (.*)", re.DOTALL)
_BUILDER_NOISE = re.compile(r" ---> |Removing intermediate container |Successfully (built|tagged) ")
_COLOUR = re.compile(r"\x1b\[\d*m")
_NO_SUCH_IMAGE = (
    "not found", "does not exist", "no such image", "manifest unknown", "name unknown", "no matching manifest",
    "no match for platform", "access denied", "access to the resource is denied", "unauthorized", "should not be blank",
    "invalid reference format",
)  # fmt: skip
"""How engines and registries word that an image cannot be had, now or later."""
_DISK_FULL = "no space left on device"
_LAST_LINES = 5
_TAIL_LINES = 60
_TAIL_BYTES = 16 * 1024
_BASE_ALIAS = f"FROM {BASE_REPOSITORY}\n"


def split_local_base(dockerfile: str) -> tuple[Packages, str] | None:
    """The packages of the local base image that is needed, and what follows its lines; None when none is."""
    if dockerfile.startswith(_BASE_ALIAS):
        return (), dockerfile.removeprefix(_BASE_ALIAS)
    return split_base(dockerfile)


def image_name(dockerfile: str, context: BuildContext) -> str:
    """The name under which the built image is kept: a hash of all that goes into it."""
    digest = hashlib.sha256()
    parts = [dockerfile.encode(), str(context.network).encode()]
    for file in sorted(context.files, key=lambda file: file.path):
        parts += [file.path.encode(), str(file.mode).encode(), file.data]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return f"{BUILD_REPOSITORY}:{digest.hexdigest()[:32]}"


class BuildLog:
    """Follows a build's progress stream: the current step, the end of the log, what came of it. No I/O."""

    def __init__(self) -> None:
        self.step = ""
        self.built = False
        self.error = ""
        self.exit_code: int | None = None
        self._text = ""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one object of the stream."""
        if text := line.get("stream"):
            self._add_text(_COLOUR.sub("", text))
        if "ID" in (line.get("aux") or {}):
            self.built = True
        if "error" in line:
            self.error = line["error"]
            self.exit_code = (line.get("errorDetail") or {}).get("code")

    def _add_text(self, text: str) -> None:
        if step := _STEP.match(text):
            self.step = step[1].strip()
        elif not _BUILDER_NOISE.match(text):
            self._text = (self._text + text)[-4 * _TAIL_BYTES :]

    @property
    def tail(self) -> str:
        lines = f"{self._text.rstrip()}\n{self.error}".strip().splitlines()[-_TAIL_LINES:]
        return "\n".join(lines)[-_TAIL_BYTES:]


class PullFailed(EngineFault):
    """An image to start from could not be fetched this time."""


def check(log: BuildLog) -> None:
    """Raises what is not the doing of the steps: BuildUnsupported, PullFailed, EngineFault."""
    error = log.error.lower()
    if error and _DISK_FULL in "\n".join(log.tail.lower().splitlines()[-_LAST_LINES:]):
        raise EngineFault(ENGINE, "building an image", f"no space is left on the engine's disk ({log.step})")
    if not error or not log.step.upper().startswith("FROM "):
        return
    if any(words in error for words in _NO_SUCH_IMAGE):
        remedy = "Load the image into the engine first, or start from the base lines."
        raise BuildUnsupported(ENGINE, f"{log.step} ({log.error})", remedy)
    raise PullFailed(ENGINE, log.step, log.error)


async def build_image(client: Client, name: str, dockerfile: str, context: BuildContext) -> BuildResult:
    """Build, or find by name. Raises: BuildUnsupported, EngineFault."""
    started = time.monotonic()
    if await image_exists(client, name):
        return BuildResult(image=name, cached=True, duration_s=time.monotonic() - started)
    log = BuildLog()
    with anyio.move_on_after(context.timeout_s) as limit:
        await _follow(client, name, _pack_context(dockerfile, context), context, log)
    if limit.cancelled_caught:
        log.error = f"the build did not finish within {context.timeout_s:g} s"
    check(log)
    done = log.built and not log.error
    return BuildResult(
        image=name if done else "",
        failed_step="" if done else log.step,
        exit_code=None if done else log.exit_code,
        log_tail=log.tail,
        duration_s=time.monotonic() - started,
    )


def _pack_context(dockerfile: str, context: BuildContext) -> bytes:
    files = [(archive.relative(file.path), file) for file in context.files]
    return archive.pack([*files, ("Dockerfile", File(path="Dockerfile", data=dockerfile.encode()))])


async def _follow(client: Client, name: str, packed: bytes, context: BuildContext, log: BuildLog) -> None:
    memory = str(Limits().memory_mb << 20)
    query = {
        "t": name, "dockerfile": "Dockerfile", "version": "1", "rm": "1", "forcerm": "1",
        "networkmode": "default" if context.network else "none", "memory": memory, "memswap": memory,
        "labels": json.dumps({labels.IMAGE: "build"}),
    }  # fmt: skip
    try:
        with answering("building an image", math.inf):
            async with client.request(
                "POST", "build", query, data=packed, content_type="application/x-tar"
            ) as response:
                async for line in json_lines(response):
                    log.add(line)
    except EngineFault as fault:
        if "dockerfile" not in fault.reason.lower():
            raise
        log.error = fault.reason  # it cannot be parsed: said before any step
