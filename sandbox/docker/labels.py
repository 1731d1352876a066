"""Names and labels: how the engine's own records tell which containers and images are ours, and whose.

Invariants:
- A container is ours when its labels say so *and* its name is the one we gave: an image made from one of our sandboxes
  carries the labels on, and somebody else's container started from that image is not ours.
- Everything here is fixed before the container is created, so that no crash can hide it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from sandbox.docker.client import ENGINE
from sandbox.spec import SandboxRecord, SandboxSpec

SANDBOX = "termloom.sandbox"
RUN = "termloom.run"
OWNER = "termloom.owner"
EXPIRES = "termloom.expires"
PURPOSE = "termloom.purpose"
IMAGE = "termloom.image"
"""On images: `base`, `build` or `frozen`."""
IMAGE_OWNER = "termloom.image.owner"

BASE_REPOSITORY = "termloom-base"
BUILD_REPOSITORY = "termloom-build"
FROZEN_REPOSITORY = "termloom-frozen"
TRUSTED_VOLUME = "termloom-trusted"


def new_sandbox_id() -> str:
    return secrets.token_hex(8)


def container_name(sandbox_id: str) -> str:
    return f"termloom-{sandbox_id}"


def sandbox_labels(sandbox_id: str, spec: SandboxSpec, *, owner: str, expires_at: float) -> dict[str, str]:
    return {
        SANDBOX: sandbox_id,
        RUN: spec.run_id,
        OWNER: owner,
        EXPIRES: f"{expires_at:.3f}",
        PURPOSE: spec.purpose,
        IMAGE: "",
        IMAGE_OWNER: "",
    }


def image_labels(kind: str, *, owner: str) -> dict[str, str]:
    """Labels of an image; those of the sandbox it was made from are emptied."""
    return {SANDBOX: "", RUN: "", OWNER: "", EXPIRES: "", PURPOSE: "", IMAGE: kind, IMAGE_OWNER: owner}


def record_of(listed: Mapping[str, Any]) -> SandboxRecord | None:
    """The record of one entry of the engine's list of containers; None when it is not ours."""
    labels = listed.get("Labels") or {}
    sandbox_id = labels.get(SANDBOX, "")
    if not sandbox_id or f"/{container_name(sandbox_id)}" not in (listed.get("Names") or ()):
        return None
    return SandboxRecord(
        sandbox_id=sandbox_id,
        engine=ENGINE,
        run_id=labels.get(RUN, ""),
        purpose=labels.get(PURPOSE, ""),
        owner=labels.get(OWNER, ""),
        created_at=float(listed.get("Created", 0)),
        expires_at=float(labels.get(EXPIRES) or 0),
    )
