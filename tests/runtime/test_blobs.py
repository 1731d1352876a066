"""Content-addressed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.blobs import Blobs
from runtime.errors import StoreError


def test_equal_content_is_one_file(tmp_path: Path):
    blobs = Blobs(tmp_path)
    assert blobs.put(b"x" * 10) == blobs.put(b"x" * 10)
    assert blobs.get(blobs.put(b"")) == b""
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 2


def test_a_missing_blob_is_a_key_error(tmp_path: Path):
    with pytest.raises(KeyError):
        Blobs(tmp_path).get("0" * 64)


def test_a_damaged_blob_is_never_data(tmp_path: Path):
    blobs = Blobs(tmp_path)
    digest = blobs.put(b"right")
    (tmp_path / digest[:2] / digest).write_bytes(b"wrong")
    with pytest.raises(StoreError, match="does not match its name"):
        blobs.get(digest)


def test_a_place_that_refuses_is_a_store_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="choose another state directory"):
        Blobs(tmp_path / "file").put(b"x")
