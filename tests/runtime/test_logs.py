"""Logs: JSON in the file with the bound ids, warnings on standard error."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import structlog

from runtime.errors import UserError
from runtime.events import Kind, RunEvent
from runtime.logs import log_event, logging_to


def test_lines_are_json_with_bound_ids_and_warnings_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "logs" / "run.jsonl"
    with logging_to(path):
        with structlog.contextvars.bound_contextvars(run="7", item="00001", stage="solve"):
            structlog.stdlib.get_logger("ours").info("graded", reward=1.0)
            logging.getLogger("theirs").warning("slow %s", "disk")
        log_event(RunEvent(kind=Kind.FAULT, run="7", at=0.0, stage="solve", item="00002", detail="KeyError"))
        log_event(RunEvent(kind=Kind.QUEUED, run="7", at=0.0))
    graded, slow, fault = [json.loads(line) for line in path.read_text().splitlines()]
    assert (graded["event"], graded["reward"], graded["level"]) == ("graded", 1.0, "info")
    assert (graded["run"], graded["item"], graded["stage"]) == ("7", "00001", "solve")
    assert (slow["event"], slow["item"], slow["logger"]) == ("slow disk", "00001", "theirs")
    assert (fault["event"], fault["level"], fault["item"]) == ("fault", "error", "00002")
    shown = capsys.readouterr().err
    assert "slow disk" in shown
    assert "graded" not in shown


def test_an_exception_is_kept_with_its_traceback(tmp_path: Path):
    with logging_to(tmp_path / "run.jsonl"):
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            structlog.stdlib.get_logger("ours").exception("failed")
    (line,) = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert "ZeroDivisionError: division by zero" in line["exception"]


def test_what_is_logged_does_not_steer_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with logging_to(tmp_path / "run.jsonl"):
        log_event(RunEvent(kind=Kind.STALLED, run="7", at=0.0, item="1", detail="\x1b]0;pwned\x07"))
        logging.getLogger("theirs").error("\x1b[2Jwiped", exc_info=KeyError("a key"))
    shown = capsys.readouterr().err
    assert "pwned" in shown
    assert "wiped" in shown
    assert "KeyError: 'a key'" in shown
    assert "\x1b" not in shown
    assert "\\u001b[2Jwiped" in (tmp_path / "run.jsonl").read_text()


def test_nothing_is_left_configured(tmp_path: Path):
    before = list(logging.getLogger().handlers)
    with logging_to(tmp_path / "run.jsonl"):
        assert logging.getLogger().handlers != before
    assert logging.getLogger().handlers == before
    assert not structlog.is_configured()


def test_a_place_that_refuses_is_a_user_error(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="Choose another state directory"), logging_to(tmp_path / "file" / "x.log"):
        pass
