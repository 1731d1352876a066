"""Which engine is opened, and what is said when none can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.errors import EngineUnavailable
from sandbox.open import open_engine


async def test_docker_that_does_not_answer_is_refused_with_reason_and_remedy(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    with pytest.raises(EngineUnavailable, match=r"none\.sock.*Start Docker"):
        async with open_engine("docker", cache=tmp_path, state=tmp_path, progress=print, docker_url=url):
            pass
