"""The base environment made by an engine that can reach a registry, for a machine without mmdebstrap."""

from __future__ import annotations

from pathlib import Path

import anyio

from sandbox.basebuild import MakingFailed
from sandbox.docker.build import PullFailed, build_image, image_name
from sandbox.docker.client import CREATE_S, TRANSFER_S, Client, answering
from sandbox.errors import BuildUnsupported, EngineUnavailable
from sandbox.spec import BuildContext

_REMEDY = "Install mmdebstrap (apt-get install mmdebstrap), or let the engine reach a registry."


async def export_base(tar: Path, dockerfile: str, *, url: str | None = None) -> None:
    """Build `dockerfile` with the network, write the result's file system to `tar`.

    Raises: EngineUnavailable when the image to start from cannot be had; MakingFailed; EngineFault.
    """
    context = BuildContext(dockerfile=dockerfile, network=True, timeout_s=1200.0)
    async with Client(url) as client:
        try:
            built = await build_image(client, image_name(dockerfile, context), dockerfile, context)
        except (BuildUnsupported, PullFailed) as error:
            raise EngineUnavailable("base environment", str(error), _REMEDY) from error
        if not built.ok:
            raise MakingFailed(f"{built.failed_step} failed", built.log_tail, _REMEDY)
        await _export(client, built.image, tar)


async def _export(client: Client, image: str, tar: Path) -> None:
    with answering("exporting the base environment", CREATE_S):
        created = await client.ask("POST", "containers/create", data={"Image": image, "Cmd": ["/bin/true"]})
    path = f"containers/{created['Id']}"
    try:
        with answering("exporting the base environment", TRANSFER_S):
            async with client.request("GET", f"{path}/export") as response, await anyio.open_file(tar, "wb") as file:
                async for chunk in response.content.iter_any():
                    await file.write(chunk)
    finally:
        with anyio.CancelScope(shield=True), answering("exporting the base environment", CREATE_S):
            await client.ask("DELETE", path, {"force": "1"})
