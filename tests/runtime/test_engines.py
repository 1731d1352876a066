"""Every command opens the engine that the settings name."""

import re

import pytest

from runtime.engines import open_settings_engine
from runtime.settings import load_settings
from sandbox.errors import EngineUnavailable


async def test_the_address_of_the_settings_is_the_one_that_is_asked(tmp_path):
    address = f"unix://{tmp_path}/nobody.sock"
    places = (f"paths.state={tmp_path}", f"paths.cache={tmp_path}")
    settings = load_settings(sets=("sandbox.engine=docker", f"sandbox.docker_url={address}", *places))
    with pytest.raises(EngineUnavailable, match=re.escape(address)):
        async with open_settings_engine(settings, print):
            pass
