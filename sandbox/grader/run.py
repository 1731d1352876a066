"""Runs the test modules in /tests and reports what became of each, over a channel that no test ever had.

This file is a program: `sandbox.verifier` passes its text to the trusted interpreter with `-c`, so that no file of the
sandbox takes part in it. It knows the standard library and pytest (7 or newer), and nothing of this package.

Input, on standard input: JSON with `nonce`, `modules` (paths), `test_timeout_s` and `env`.
Output, on the descriptor that was standard output at the start: the nonce as one line before any test runs, so that who
reads it knows that what follows is the tests' doing; then one JSON object with `nonce`, `tests` (in the form of
`sandbox.spec.GradedTest`), `exit_code` (pytest's) and `log` (the end of pytest's own output).

Invariants:
- Before a test runs, the process is not dumpable: not even root, without CAP_SYS_PTRACE, can read its memory, where the
  nonce is, or open its descriptors. The report's descriptor is closed on exec; 0, 1 and 2 are /dev/null.
- Settings come from here alone: no configuration file, no conftest, no plugin, no cache, an environment made anew.
- A test that was collected and did not run is an error, whatever ended the run early.
- Collection of a module, and setup, call and teardown of a test, get `test_timeout_s` each. The alarm repeats, for code
  that swallows it. The first test that runs out of time ends the run: what hangs every test does not outlast the suite.
- Temporary files go to a new directory of unguessable name, whatever was prepared in /tmp.

A test that imports the agent's code lets it into this process; one that runs it as a program does not.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

gc.disable()  # most of a grading is the loading of pytest: without collections meanwhile it takes a tenth less
import pytest  # noqa: E402

gc.freeze()
gc.enable()

_PR_SET_DUMPABLE = 4
_MESSAGE_LIMIT = 1000
_AGAIN_S = 1.0
_UNDECIDED = "NotRun"
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
_OPTIONS = (
    "-q",
    "-c=/dev/null",
    "--rootdir=/tests",
    "--confcutdir=/tests",
    "--noconftest",
    "--import-mode=importlib",
    "--capture=sys",
    "--tb=native",  # for a failed test pytest renders the source otherwise, and nobody reads it
    "-pno:cacheprovider",
)


class OutOfTime(BaseException):
    """A test took too long. No Exception, so that `except Exception` in a test does not swallow it."""


class Recorder:
    """The pytest plugin: one entry a test, decided by the first phase that did not pass, else by the last."""

    def __init__(self, limit_s: float) -> None:
        self.tests: list[dict[str, str]] = []
        self._limit_s = limit_s
        self._entries: dict[str, dict[str, str]] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            name = item.nodeid.split("::", 1)[-1]
            self._entries[item.nodeid] = _entry(name, "error", _UNDECIDED, "the run ended before this test")
        self.tests += self._entries.values()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, Any, None]:
        with self._alarm():
            report = (yield).get_result()
        if report.outcome == "passed":
            return
        text = str(report.longrepr)
        last_line = text.strip().rsplit("\n", 1)[-1].removeprefix("E ").strip()
        kind, exception = ("error", last_line.partition(":")[0]) if report.failed else ("skipped", "")
        self.tests.append(_entry("<module>", kind, exception, _text(text)))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        with self._alarm():
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with self._alarm():
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        with self._alarm():
            yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, None]:
        report = (yield).get_result()
        entry = self._entries[item.nodeid]
        if entry["exception"] != _UNDECIDED:
            return
        if report.outcome != "passed":
            error = call.excinfo.value if call.excinfo else None
            kind = "skipped" if report.outcome == "skipped" else _kind(error)
            exception = type(error).__name__ if error is not None else ""
            entry.update(_entry(entry["name"], kind, exception, _text(report.longrepr if error is None else error)))
            if kind == "timeout":
                item.session.shouldstop = "out of time"
        elif report.when == "teardown":
            entry.update(_entry(entry["name"], "passed", "", ""))

    @contextmanager
    def _alarm(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _entry(name: str, outcome: str, exception: str, message: str) -> dict[str, str]:
    return {"name": name, "outcome": outcome, "exception": exception, "message": message}


def _text(thing: object) -> str:
    """`thing` as valid text of bounded length, whatever its own `__str__` does."""
    try:
        text = str(thing)
    except Exception as error:
        text = f"{type(thing).__name__} ({type(error).__name__} in __str__)"
    return text[-_MESSAGE_LIMIT:].encode("utf-8", "replace").decode()


def _kind(error: BaseException | None) -> str:
    """An assertion is also `pytest.fail`, `pytest.raises` that saw nothing raised, and a strict xpass (no error)."""
    if isinstance(error, OutOfTime):
        return "timeout"
    return "failed" if error is None or isinstance(error, (AssertionError, pytest.fail.Exception)) else "error"


def _take_channels() -> tuple[dict[str, Any], int]:
    """Read the input, keep the report's descriptor, and leave /dev/null in the place of 0, 1 and 2."""
    config: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return config, channel


def _on_alarm(_number: int, _frame: object) -> None:
    raise OutOfTime


def _run(modules: Sequence[str], recorder: Recorder) -> tuple[int, str]:
    signal.signal(signal.SIGALRM, _on_alarm)
    base = tempfile.mkdtemp(prefix="grade-", dir="/tmp")
    sys.stdout = sys.stderr = log = io.StringIO()
    exit_code = pytest.main([*_OPTIONS, f"--basetemp={base}/t", *modules], plugins=[recorder])
    return int(exit_code), _text(log.getvalue())


def main() -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise SystemExit("the grader cannot protect its memory")
    config, channel = _take_channels()
    os.environ.clear()
    os.environ.update(_ENVIRONMENT | config["env"])
    process = os.getpid()
    os.write(channel, f"{config['nonce']}\n".encode())
    recorder = Recorder(config["test_timeout_s"])
    exit_code, log = _run(config["modules"], recorder)
    if os.getpid() != process:
        os._exit(0)  # a test forked and its child came this far
    report = {"nonce": config["nonce"], "tests": recorder.tests, "exit_code": exit_code, "log": log}
    with os.fdopen(channel, "w", encoding="utf-8") as stream:
        json.dump(report, stream)
    os._exit(0)  # nothing that the tests left at work keeps the report waiting


if __name__ == "__main__":
    main()
