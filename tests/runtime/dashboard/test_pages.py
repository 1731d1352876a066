"""The dashboard in a real browser, with the data of real runs. Pictures go to $TERMLOOM_PICTURES when it is set."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import Daemon, end_of, submit, until
from tests.runtime.dashboard.browser import Browser
from tests.runtime.dashboard.samples import write

pytestmark = [pytest.mark.namespace, pytest.mark.slow]


class Site:
    """A daemon that has finished a generation and a small job, and works on another; and a browser that is let in."""

    def __init__(self, daemon: Daemon, browser: Browser, tmp_path: Path) -> None:
        self.daemon, self.browser, self.tmp_path = daemon, browser, tmp_path
        parts = urlsplit(daemon.address)
        self.base = f"{parts.scheme}://{parts.netloc}"

    def show(self, path: str, picture: str) -> str:
        self.browser.open(self.base + path)
        text = self.browser.text()
        self.picture(picture)
        assert self.browser.complaints() == []
        return text

    def picture(self, name: str) -> None:
        if folder := os.environ.get("TERMLOOM_PICTURES"):
            self.browser.picture(Path(folder) / f"{name}.png")


async def _prepare(daemon: Daemon, tmp_path: Path) -> None:
    settings = {"generate": {"count": 2, "seed": 3, "attempts": 4}}
    generation = {"kind": "generate", "settings": settings, "options": {"out": str(tmp_path / "tasks")}}
    job = (await daemon.client.post("jobs", body=generation))["job"]
    write(tmp_path / "shop")
    small = await submit(daemon.client, tmp_path / "shop", count=4, broken=["001"], mended="/nowhere")
    assert (await end_of(daemon.client, small))["state"] == "finished"
    assert (await end_of(daemon.client, job))["state"] == "finished"
    await submit(daemon.client, tmp_path / "long", count=5000, pace_s=0.3)
    await until(daemon.client, "j3", "done", times=6)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need_namespaces()
    base_environment()
    tmp_path = tmp_path_factory.mktemp("dashboard")
    with Daemon(tmp_path) as daemon, Browser() as browser:
        anyio.run(_prepare, daemon, tmp_path)
        browser.open(daemon.address)
        yield Site(daemon, browser, tmp_path)


def test_the_token_leaves_the_address_and_a_stranger_is_not_let_in(site):
    assert "token" not in site.browser.url
    with Browser() as stranger:
        stranger.open(site.base + "/")
        assert "no token" in stranger.text()


def test_the_overview_shows_jobs_limits_and_moves_by_itself(site):
    text = site.show("/", "overview")
    assert "namespace" in text
    assert "j1 generate" in text
    before = site.browser.run("return document.querySelector('.flow').innerText")
    site.browser.until(f"document.querySelector('.flow').innerText !== {before!r}")
    assert site.browser.complaints() == []


def test_a_job_shows_its_yield_curves_and_events(site):
    text = site.show("/jobs/j1", "job-generate")
    for word in ("draft", "certify", "taken", "passed", "Curves"):
        assert word in text
    text = site.show("/jobs/j2", "job-shop")
    assert "gave_up" in text


def test_a_task_shows_instruction_files_tests_and_certificate(site):
    name = next(path.parent.name for path in (site.tmp_path / "tasks").glob("*/task.toml"))
    text = site.show("/jobs/j1/out", "contents")
    assert name in text
    text = site.show(f"/jobs/j1/out/tasks/{name}", "task")
    instruction = (site.tmp_path / "tasks" / name / "instruction.md").read_text().split("\n")[0]
    assert instruction in text
    assert "tests/test_outputs.py" in text
    assert "attempt" in text


def test_a_trajectory_replays_with_mistake_recovery_and_verdict_marked(site):
    site.show("/jobs/j2/out/trajectories/trajectories.jsonl", "trajectories")
    text = site.show("/jobs/j2/out/trajectories/trajectories.jsonl/0", "trajectory")
    assert "mistake: command_error" in text
    assert "recovery" in text
    assert "test_count" in text
    marks = site.browser.run("return [...document.querySelectorAll('.turn')].map(turn => turn.className)")
    assert marks == ["turn ", "turn mistake", "turn recovery", "turn "]


def test_keys_walk_turns_open_rows_and_go_to_the_next_trajectory(site):
    site.browser.open(site.base + "/jobs/j2/out/trajectories/trajectories.jsonl")
    site.browser.press("jj\ue007")
    site.browser.until("location.pathname.endsWith('/1') && document.querySelector('.turn')")
    site.browser.press("m")
    assert site.browser.run("return document.querySelector('.at').id") == "turn-2"
    site.browser.press("x")
    assert site.browser.run("return document.querySelector('.at').classList.contains('folded')")
    site.browser.press("n")
    site.browser.until("location.pathname.endsWith('/2')")
    site.browser.press("u")
    site.browser.until("location.pathname.endsWith('jsonl')")


def test_what_a_trajectory_holds_is_never_run(site):
    text = site.show("/jobs/j2/out/trajectories/trajectories.jsonl/3", "hostile")
    assert "<script>window.hacked = 1</script>" in text
    assert site.browser.run("return window.hacked === undefined")
    assert site.browser.run("return document.querySelectorAll('main img, main script').length") == 0


def test_two_jobs_are_compared(site):
    text = site.show("/compare?a=j2&b=j3", "compare")
    assert "j2" in text
    assert site.browser.run("return document.querySelectorAll('figure').length") > 0


def test_a_job_is_paused_and_cancelled_from_its_page(site):
    site.browser.open(site.base + "/jobs/j3")
    site.browser.click("form[action='/jobs/j3/pause'] button")
    site.browser.until("document.querySelector('h1 .badge').innerText === 'paused'")
    site.picture("job-paused")
    site.browser.click("form[action='/jobs/j3/cancel'] button")
    site.browser.accept()
    site.browser.until("document.querySelector('h1 .badge').innerText === 'cancelled'")


def test_a_dead_letter_is_requeued_from_its_page(site):
    assert "gave_up: the plane is blunt" in site.show("/dead-letters", "dead-letters")
    site.browser.click("form[action$='/requeue'] button")
    site.browser.until("location.pathname === '/jobs/j2/items/001-r1'")
    assert "001-r1" in site.browser.text()
    site.picture("item")


def test_dark_is_remembered_and_text_stays_readable(site):
    site.browser.open(site.base + "/")
    for theme in ("dark", "light"):
        site.browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
        worst = site.browser.run(_CONTRAST)
        assert worst["ratio"] >= 4.5, (theme, worst)
    site.browser.run("localStorage.setItem('theme', 'dark')")
    site.show("/", "overview-dark")
    assert site.browser.run("return document.documentElement.dataset.theme") == "dark"
    site.browser.run("localStorage.clear()")


_CONTRAST = """
const light = c => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const lum = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number); return .2126 * light(r) + .7152 * light(g) + .0722 * light(b); };
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
let worst = { ratio: 99 };
for (const e of document.querySelectorAll('main *, header *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const a = lum(getComputedStyle(e).color), b = lum(ground(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < worst.ratio) worst = { ratio, text: e.innerText, color: getComputedStyle(e).color, ground: ground(e) };
}
return worst;
"""  # noqa: E501  (JavaScript)
