"""The base image and the trusted volume: what every engine needs once for each base environment.

Invariants:
- Both are named after the base's digest. The image appears whole (an import is atomic).
- A volume counts as filled when its last file is there. Who fills it holds a container of a fixed name, which the
  engine gives to one at a time, wherever they run; that of a filler that died is removed by the reaper or the next.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import anyio

from sandbox.basebuild import Base
from sandbox.docker import archive, labels
from sandbox.docker.client import (
    CALL_S,
    CREATE_S,
    ENGINE,
    TRANSFER_S,
    Absent,
    Client,
    Conflict,
    answering,
    json_lines,
)
from sandbox.docker.config import PATH, volume_mount
from sandbox.docker.container import remove_container
from sandbox.docker.labels import BASE_REPOSITORY, TRUSTED_VOLUME, container_name
from sandbox.errors import EngineFault
from sandbox.owner import owner_is_dead
from sandbox.spec import TRUSTED_DIR, Limits, SandboxSpec

_FILLED = ".filled"
_FILL_S = 300.0


async def image_exists(client: Client, name: str) -> bool:
    """Whether the engine holds the image."""
    try:
        with answering("looking for an image", CALL_S):
            await client.ask("GET", f"images/{name}/json")
    except Absent:
        return False
    return True


async def ensure_base_image(client: Client, base: Base) -> str:
    """Import the base environment unless the engine has it; gives its name."""
    name = f"{BASE_REPOSITORY}:{base.digest}"
    if not await image_exists(client, name):
        changes = (f"ENV PATH={PATH}", 'CMD ["/bin/bash"]', f"LABEL {labels.IMAGE}=base")
        query = [("fromSrc", "-"), ("repo", BASE_REPOSITORY), ("tag", base.digest)]
        query += [("changes", change) for change in changes]
        with base.tar.open("rb") as tar, answering("importing the base image", TRANSFER_S):
            async with client.request(
                "POST", "images/create", query, data=tar, content_type="application/x-tar"
            ) as response:
                async for line in json_lines(response):
                    if "error" in line:
                        raise EngineFault(ENGINE, "importing the base image", line["error"])
    return name


async def ensure_trusted_volume(client: Client, base: Base, image: str, *, owner: str) -> str:
    """Fill the volume of the trusted tree unless that was done; gives its name."""
    volume = f"{TRUSTED_VOLUME}-{base.digest}"
    filler_id = f"trusted-{base.digest}"
    deadline = time.monotonic() + _FILL_S
    while not await _claim(client, filler_id, volume, image, owner):
        if time.monotonic() > deadline:
            await remove_container(client, filler_id)  # its maker hangs, or died elsewhere
        await _remove_dead(client, filler_id)
        await _await_release(client, filler_id)
    try:
        await _fill(client, filler_id, base.trusted)
    finally:
        with anyio.CancelScope(shield=True):
            await remove_container(client, filler_id)
    return volume


async def _claim(client: Client, filler_id: str, volume: str, image: str, owner: str) -> bool:
    """Create the container, never started, that the volume is reached through; False when somebody else has it."""
    spec = SandboxSpec(image=image, purpose="filling the trusted volume", limits=Limits(lifetime_s=_FILL_S))
    marks = labels.sandbox_labels(filler_id, spec, owner=owner, expires_at=time.time() + _FILL_S)
    config = {
        "Image": image, "Cmd": ["/bin/true"], "Labels": marks, "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "Mounts": [volume_mount(volume, read_only=False)]},
    }  # fmt: skip
    try:
        with answering("making the trusted volume", CREATE_S):
            await client.ask("POST", "containers/create", {"name": container_name(filler_id)}, data=config)
    except EngineFault as fault:
        if "already in use" not in fault.reason:
            raise
        return False
    return True


async def _remove_dead(client: Client, filler_id: str) -> None:
    """Remove the holder's container when its owner is dead: by its own id, since another may have the name by then."""
    with suppress(Absent, Conflict), answering("looking at who fills the trusted volume", CREATE_S):
        holder = await client.ask("GET", f"containers/{container_name(filler_id)}/json")
        if owner_is_dead((holder["Config"]["Labels"] or {}).get(labels.OWNER, "")):
            await client.ask("DELETE", f"containers/{holder['Id']}", {"force": "1"})


async def _await_release(client: Client, filler_id: str) -> None:
    """Until the holder has removed its container, for a while."""
    with anyio.move_on_after(_FILL_S / 10):
        try:
            with answering("waiting for the trusted volume", _FILL_S):
                await client.ask("POST", f"containers/{container_name(filler_id)}/wait", {"condition": "removed"})
        except Absent:
            pass


async def _fill(client: Client, filler_id: str, trusted: Path) -> None:
    path = f"containers/{container_name(filler_id)}/archive"
    try:
        with answering("looking into the trusted volume", CALL_S):
            async with client.request("GET", path, {"path": f"{TRUSTED_DIR}/{_FILLED}"}):
                pass
    except Absent:
        with tempfile.TemporaryFile() as tar:
            await anyio.to_thread.run_sync(lambda: archive.pack_tree(trusted, tar, last=_FILLED))
            tar.seek(0)
            with answering("filling the trusted volume", TRANSFER_S):
                async with client.request(
                    "PUT", path, {"path": TRUSTED_DIR}, data=tar, content_type="application/x-tar"
                ):
                    pass
