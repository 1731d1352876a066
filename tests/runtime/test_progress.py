"""Progress: counts derive from events, whatever the screen."""

from __future__ import annotations

import io
import json
import time

import anyio
import pytest
from rich.console import Console

from runtime.events import Kind, RunEvent, fan_out
from runtime.progress import Tally, show_progress, table


def event(kind: Kind, stage: str = "", item: str = "", *, at: float = 0.0, detail: str = "") -> RunEvent:
    return RunEvent(kind=kind, run="r", at=at or time.time(), stage=stage, item=item, detail=detail)


STORY = [
    event(Kind.QUEUED, "draft", "a", at=100),
    event(Kind.QUEUED, "draft", "b", at=101),
    event(Kind.QUEUED, "draft", "c", at=102),
    event(Kind.STARTED, "draft", "a", at=103),
    event(Kind.STARTED, "draft", "b", at=103),
    event(Kind.DONE, "draft", "a", at=110),
    event(Kind.QUEUED, "solve", "a", at=110),
    event(Kind.RETRY, "draft", "b", at=111, detail="away"),
    event(Kind.STARTED, "draft", "b", at=112),
    event(Kind.DONE, "draft", "b", at=113),
    event(Kind.SETTLED, "draft", "b", at=113, detail="dull"),
]


def test_a_tally_follows_each_item():
    tally = Tally(["draft", "solve"])
    for told in STORY:
        tally(told)
    assert tally.rows(120.0) == [
        ("draft", "1", "0", "1", "1", "2", "18 s"),
        ("solve", "1", "0", "0", "0", "0", "10 s"),
    ]
    assert tally.stages["draft"].rejected == {"dull": 1}
    assert tally.stages["draft"].retried == 1
    assert tally.line(120.0) == (
        "draft 1+0 in, 1 passed, 1 rejected; solve 1+0 in, 0 passed, 0 rejected; last movement 7 s ago"
    )
    assert tally.rows(172.0)[0][5] == "1"  # the first departure is more than a minute ago


async def test_programs_get_one_json_object_a_line():
    output, screen = io.StringIO(), io.StringIO()
    async with show_progress(["draft"], json=True, screen=screen, output=output) as listener:
        for told in STORY:
            listener(told)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == [told.kind for told in STORY]
    assert lines[0] == {
        "kind": "queued", "run": "r", "at": 100.0, "stage": "draft", "queue": "", "item": "a", "detail": ""
    }  # fmt: skip
    assert screen.getvalue() == ""


async def test_without_a_terminal_there_are_lines_and_troubles_are_told_at_once():
    screen = io.StringIO()
    async with show_progress(["draft"], screen=screen) as listener:
        for told in STORY:
            listener(told)
        assert screen.getvalue() == ""
        listener(event(Kind.FAULT, "draft", "c", detail="Traceback (most recent call last):\n  ...\nKeyError: 'x'\n"))
        assert screen.getvalue() == "fault: draft c: KeyError: 'x'\n"
    assert screen.getvalue().splitlines()[-1].startswith("draft 1+0 in, 1 passed, 1 rejected; last movement")


async def test_lines_come_by_themselves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.progress.LINE_EVERY_S", 0.001)
    written = anyio.Event()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    async with show_progress(["draft"], screen=Screen()):
        with anyio.fail_after(20):
            await written.wait()


async def test_a_terminal_shows_a_live_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    async with show_progress(["draft", "solve"], screen=screen) as listener:
        for told in STORY:
            listener(told)
        listener(event(Kind.STALLED, "draft", "c", detail="has not moved for 300 s; waiting 'build'"))
    shown = screen.getvalue()
    assert "oldest" in shown
    assert "stalled: draft c: has not moved for 300 s" in shown


@pytest.mark.parametrize("kind", [Kind.STALLED, Kind.SAID])
@pytest.mark.parametrize("is_terminal", [False, True])
async def test_what_a_container_wrote_does_not_steer_the_terminal(kind: Kind, is_terminal: bool):
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    screen = Screen()
    async with show_progress(["draft"], screen=screen) as listener:
        listener(event(kind, "draft", "c", detail="log: \x1b]0;pwned\x07"))
    assert "pwned" in screen.getvalue()
    assert "\x1b]" not in screen.getvalue()


def test_cells_of_a_table_are_text_and_nothing_else(capsys: pytest.CaptureFixture[str]):
    Console(width=80).print(table(["task"], [["[red]a\x1b[2J"]]))
    assert "[red]a\N{REPLACEMENT CHARACTER}[2J" in capsys.readouterr().out


async def test_an_error_inside_comes_out_as_itself():
    with pytest.raises(ZeroDivisionError):
        async with show_progress(["draft"], screen=io.StringIO()):
            raise ZeroDivisionError


def test_every_listener_is_told():
    first: list[RunEvent] = []
    second: list[RunEvent] = []
    fan_out(first.append, second.append)(STORY[0])
    assert first == second == STORY[:1]


def test_a_table_aligns_numbers():
    made = table(["task", "rate"], [["a", "0.5"], ["b", ""]])
    assert [column.justify for column in made.columns] == ["left", "right"]
