"""Logs: every line as JSON in a file, warnings for people on standard error.

`structlog.contextvars` carry run, item and stage into every line that a handler writes; the runner binds them. Lines of
other libraries go the same way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from runtime.errors import UserError
from runtime.events import Kind, RunEvent
from runtime.plain_text import printable

_SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_LEVELS = {
    Kind.RETRY: logging.INFO,
    Kind.FAULT: logging.ERROR,
    Kind.STALLED: logging.WARNING,
    Kind.LAG: logging.WARNING,
    Kind.DRAINING: logging.INFO,
}


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write logs to `path` within the block. Raises: UserError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), "Choose another state directory") from None
    file.setFormatter(_formatter(structlog.processors.format_exc_info, structlog.processors.JSONRenderer()))
    screen = _StandardError(logging.WARNING)
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    screen.setFormatter(_formatter(plain, _shown))
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.INFO)
    for handler in (file, screen):
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in (file, screen):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        structlog.reset_defaults()


def log_event(event: RunEvent) -> None:
    """A run's listener: what happened, as a log line."""
    logging_level = _LEVELS.get(event.kind, logging.DEBUG)
    names = {"run": event.run, "stage": event.stage, "item": event.item, "detail": event.detail}
    structlog.stdlib.get_logger("termloom.run").log(logging_level, event.kind.value, **names)


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever standard error is at the time: a live screen replaces it while it shows."""

    def __init__(self, level: int) -> None:
        super().__init__(sys.stderr)
        self.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _shown(_: object, __: str, line: structlog.typing.EventDict) -> str:
    """The last on the way to a screen: what a renderer made of the event."""
    return printable(str(line))


def _formatter(*last: structlog.typing.Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
