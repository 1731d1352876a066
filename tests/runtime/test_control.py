"""`termloom ctl` as a person reads it."""

from __future__ import annotations

import time

import pytest

from runtime import control
from runtime.control import ctl
from runtime.errors import UserError
from runtime.options import Common


async def test_without_a_daemon_the_remedy_is_named(tmp_path):
    with pytest.raises(UserError, match="Start one with termloom serve"):
        await ctl("ps", common=Common(sets=[f"paths.state={tmp_path}"]))


def test_what_others_wrote_steers_neither_terminal_nor_table(capsys):
    letter = {"job": "j1", "item": "[red]1", "queue": "log", "reason": "blunt \x1b[2J[bold]", "at": time.time() - 300}
    control._show_dead([letter])
    shown = capsys.readouterr().out
    assert "j1/[red]1" in shown
    assert "[bold]" in shown
    assert "\x1b" not in shown
    assert "5 min" in shown


def test_an_item_is_explained_with_what_it_waits_for_and_its_journal(capsys):
    note = {"item": "7", "kind": "fault", "stage": "plane", "detail": "Traceback\nValueError: a bug", "at": time.time()}
    place = {"job": "j1", "item": "7", "place": "in work at stage 'plane'", "for_s": 4000.0, "attempts": 2,
             "waits_for": ["waiting 'run' for 9 s"], "journal": [note]}  # fmt: skip
    control._show_explain({"jobs": [], "items": [place]})
    shown = capsys.readouterr().out
    assert "j1/7: in work at stage 'plane' for 67 min; waiting 'run' for 9 s" in shown
    assert "ValueError: a bug" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("arguments", [(), ("limits.build",), ("a", "b=1")])
async def test_set_wants_keys_with_values(arguments):
    with pytest.raises(UserError, match="KEY=VALUE"):
        await control._set(None, arguments)
