"""An attempt has its image, whichever run removed that since it was built."""

from __future__ import annotations

from pathlib import Path

import pytest

from generators.context import Bench
from generators.images import HeldImages
from generators.suites import initial_suite
from runtime.limits import Limits as NamedLimits
from runtime.settings import LimitSettings
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Sandbox
from sandbox.spec import BuildContext, Limits
from tests.generators.running import namespace_engine

pytestmark = pytest.mark.namespace

TESTS = "from pathlib import Path\n\n\ndef test_made() -> None:\n    assert Path('/srv/made').is_file()\n"


async def test_an_image_that_another_run_removed_is_built_again(tmp_path: Path) -> None:
    async with namespace_engine(tmp_path / "engine") as engine:
        bench = Bench(
            engine,
            NamedLimits(LimitSettings().sizes()),
            BuildContext(dockerfile=BASE_DOCKERFILE + "RUN touch /srv/made\n"),
            Limits(),
            services=(),
            run_id="bench",
            item="a",
            images=HeldImages(),
        )
        image = await bench.image()
        await engine.remove_image(image)

        async def play(sandbox: Sandbox) -> str:
            return sandbox.spec.image

        played, verdict = await bench.attempt(image, initial_suite(TESTS), "play", play)
    assert (played, verdict.reward) == (image, 1.0)
