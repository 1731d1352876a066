"""What this machine offers to the tests. In CI a missing part is a failure; elsewhere its tests are skipped."""

from __future__ import annotations

import functools
import os
from typing import NoReturn

import anyio
import pytest

from sandbox.basebuild import Base, default_cache, ensure_base
from sandbox.namespace.engine import NamespaceEngine


def absent(what: str) -> NoReturn:
    """Skip for want of a part; fail where all parts are promised."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@functools.cache
def base_environment() -> Base:
    """The base environment, made once a machine."""
    return anyio.run(functools.partial(ensure_base, cache=default_cache(os.environ), progress=print))


def need_namespaces() -> None:
    """The daemonless engine must be usable here."""
    if reason := NamespaceEngine.probe():
        absent(f"no daemonless engine: {reason}")
