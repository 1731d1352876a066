"""What this machine offers to the tests. In CI a missing part is a failure; elsewhere its tests are skipped."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import anyio
import pytest

from sandbox.basebuild import Base, Packages, default_cache, ensure_base
from sandbox.namespace.engine import NamespaceEngine


def absent(what: str) -> NoReturn:
    """Skip for want of a part; fail where all parts are promised."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@functools.cache
def base_environment(packages: Packages = ()) -> Base:
    """The base environment, made once a machine."""
    # In a thread of its own: the test that asks first may be running in an event loop.
    with ThreadPoolExecutor(1) as thread:
        make = functools.partial(ensure_base, packages, cache=default_cache(os.environ), progress=print)
        return thread.submit(anyio.run, make).result()


def need_namespaces() -> None:
    """The daemonless engine must be usable here."""
    if reason := NamespaceEngine.probe():
        absent(f"no daemonless engine: {reason}")
