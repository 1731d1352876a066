"""How weights travel to an SGLang server: from disk, from tensors, or over a process group.

All three send what a version's own checked files hold, so that they differ in the road alone:

| road | what goes over it | for |
|---|---|---|
| `disk` | the directory's path | servers that see the trainer's disk |
| `tensors` | the tensors themselves, in one request | servers that do not, and small models |
| `group` | the tensors, broadcast by the trainer as rank 0 (gloo on a CPU, else NCCL) | large models elsewhere |

A group is made anew for each hand-over and each server, under a name of its own: a server that died takes nobody
along, and no state of an earlier group is left. Its collectives carry the hand-over's deadline themselves. SGLang from
0.5.22 on brackets the last two roads with `begin_weight_update` and `end_weight_update`; earlier ones do not know them.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from trainer.policy.protocol import PolicyUnavailable
from trainer.policy.weight_files import read_tensors

if TYPE_CHECKING:
    from torch import Tensor

Road = Literal["disk", "tensors", "group"]
Post = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Send = Callable[[Post, Path, str], Awaitable[None]]
"""(how to ask the server, directory, name of the version) -> when the server has them. Raises: PolicyUnavailable."""

MOST_S = 600.0
"""A collective's deadline where the hand-over has none."""
_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""Tensors that SGLang keeps as one, in this order."""
_PADDED, _ROWS = ("embed_tokens", "lm_head"), 64
"""Tensors whose rows it fills up with zeros, to a multiple of so many."""


class Refused(PolicyUnavailable):
    """The server answers, and says no."""

    def __init__(self, endpoint: str, reason: str, status: int) -> None:
        super().__init__(endpoint, reason)
        self.status = status


async def from_disk(post: Post, weights: Path, tag: str) -> None:
    body = {"model_path": str(weights), "weight_version": tag, "flush_cache": True}
    await post("/update_weights_from_disk", body)


async def from_tensors(post: Post, weights: Path, tag: str) -> None:
    def pack() -> str:
        named = [(name, tensor.clone()) for name, tensor in read_tensors(weights).items()]  # no views of one storage
        return base64.b64encode(pickle.dumps(named)).decode("ascii")

    body = {"serialized_named_tensors": [await to_thread.run_sync(pack)], "weight_version": tag, "flush_cache": True}
    await _bracketed(post, lambda: post("/update_weights_from_tensor", body))


def over_group(base_url: str, *, ranks: int, device: str) -> Send:
    """The road for one server of `ranks` processes."""

    async def send(post: Post, weights: Path, tag: str) -> None:
        tensors = await to_thread.run_sync(read_tensors, weights)
        await _bracketed(post, lambda: _broadcast(post, tensors, tag, base_url, ranks, device))

    return send


async def _bracketed(post: Post, load: Callable[[], Awaitable[object]]) -> None:
    brackets = await _begin(post)
    try:
        await load()
    finally:
        if brackets:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await post("/end_weight_update", {})


async def _begin(post: Post) -> bool:
    """Open the server's update, after one that was left open is closed. Whether the server knows brackets at all."""
    try:
        await post("/begin_weight_update", {})
    except Refused as error:
        if error.status == 404:
            return False
        await post("/end_weight_update", {})
        await post("/begin_weight_update", {})
    return True


async def _broadcast(
    post: Post, tensors: Mapping[str, Tensor], tag: str, base_url: str, ranks: int, device: str
) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    name, size = f"termloom-{secrets.token_hex(8)}", 1 + ranks
    host, backend = _own_address(base_url), "gloo" if device == "cpu" else "nccl"
    left_s = min(MOST_S, anyio.current_effective_deadline() - anyio.current_time())
    timeout = timedelta(seconds=max(1.0, left_s))
    store = TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    join = {
        "master_address": host,
        "master_port": store.port,
        "rank_offset": 1,
        "world_size": size,
        "group_name": name,
        "backend": backend,
    }
    group = await _both(post("/init_weights_update_group", join), lambda: _join(store, name, size, backend, timeout))
    try:
        told = {
            "names": list(tensors),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
            "group_name": name,
            "weight_version": tag,
            "flush_cache": True,
        }

        def send() -> None:
            for tensor in tensors.values():
                dist.broadcast(tensor if device == "cpu" else tensor.to(device), src=0, group=group)

        await _both(post("/update_weights_from_distributed", told), send)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            with suppress(PolicyUnavailable):
                await post("/destroy_weights_update_group", {"group_name": name})
            await to_thread.run_sync(dist.destroy_process_group, group, abandon_on_cancel=True)


async def _both(asked: Awaitable[object], work: Callable[[], Any]) -> Any:
    """The server's half and ours of one collective step. When the server says no, ours is left to its own deadline."""
    done: list[Any] = []

    async def ours() -> None:
        done.append(await to_thread.run_sync(work, abandon_on_cancel=True))

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(ours)
            await asked
    except BaseExceptionGroup as errors:
        refusals, rest = errors.split(PolicyUnavailable)
        if refusals is None:
            raise PolicyUnavailable("group", f"the broadcast failed: {errors.exceptions[0]}") from errors
        raise _first(refusals) from rest
    return done[0]


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _join(store: Any, name: str, size: int, backend: str, timeout: timedelta) -> Any:
    """Rank 0 of the group that the server's processes join: the same steps as theirs, which torch keeps private."""
    from torch.distributed import distributed_c10d as c10d

    helper: Any = c10d._new_process_group_helper
    group, _ = helper(
        size, 0, [], c10d.Backend(backend), c10d.PrefixStore(name, store), group_name=name, timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def _own_address(base_url: str) -> str:
    """Under which address a server reaches this machine: that of the interface that leads to it."""
    parts = urlsplit(base_url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        address: str = probe.getsockname()[0]
        return address


def checksums(directory: Path, dtype: str) -> dict[str, str] | None:
    """Checksums of a version's tensors as a server of one process on a CPU names and computes them; None where it does
    not say in which type it keeps them (`auto`).
    """
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        return None
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in read_tensors(directory).items():
        *path, layer, leaf = name.split(".")
        fused, place = _FUSED.get(layer, (layer, 0))
        missing = -len(tensor) % _ROWS if layer in _PADDED else 0
        whole = torch.nn.functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor
        parts.setdefault(".".join((*path, fused, leaf)), {})[place] = whole.to(kind)
    return {name: _digest(torch.cat([tensors[i] for i in sorted(tensors)])) for name, tensors in parts.items()}


def _digest(tensor: Tensor) -> str:
    import torch

    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data.data).hexdigest()[:16]
