"""A version of a policy on disk: a Hugging Face directory, its tensors in one safetensors file or cut into several."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors, by name. Raises: OSError, ValueError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor for path in _files(directory) for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{directory}: {error}") from error


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a directory of safetensors files, from their headers. Raises: OSError,
    ValueError.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _files(directory):
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            header = file.read(length) if 0 <= length <= 100 << 20 else b""
            end = file.seek(0, 2)
        if len(header) != length:
            raise ValueError(f"{path} is cut off or no safetensors file")
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        if end != 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0):
            raise ValueError(f"{path} is cut off")
        shapes |= {name: tuple(entry["shape"]) for name, entry in entries.items()}
    return shapes


def _files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory} holds no safetensors file")
    return files
