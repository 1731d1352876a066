"""The sandbox engine that the settings ask for: one way to open it, for every command and the daemon."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from runtime.settings import Settings
from sandbox.engine import Engine
from sandbox.open import open_engine


def open_settings_engine(settings: Settings, say: Callable[[str], None]) -> AbstractAsyncContextManager[Engine]:
    """The engine of `[sandbox]` and `[paths]`, to be entered. `say` is told which one it is.

    Raises (on entering): EngineUnavailable.
    """
    return open_engine(
        settings.sandbox.engine,
        cache=settings.paths.cache,
        state=settings.paths.state,
        progress=say,
        docker_url=settings.sandbox.docker_url or None,
    )
