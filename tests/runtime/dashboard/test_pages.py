"""The dashboard in a real browser, with the data of real runs. Pictures go to $TERMLOOM_PICTURES when it is set."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from tests.machine import base_environment, need_namespaces
from tests.runtime.daemon.served import Daemon, end_of, submit, until
from tests.runtime.dashboard.browser import Browser
from tests.runtime.dashboard.samples import write
from tests.trainer.asked_jobs import measuring, solves, training

pytestmark = [pytest.mark.namespace, pytest.mark.slow, pytest.mark.timeout(600)]


LEARNT, MEASURED, MADE, SHOP, LONG = "j1", "j2", "j3", "j4", "j5"


class Site:
    """A daemon that has made tasks, trained and measured, and works on another job; a browser that is let in."""

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
        """The whole page, as far as it goes down."""
        if folder := os.environ.get("TERMLOOM_PICTURES"):
            self.browser.picture(Path(folder) / f"{name}.png")


async def _prepare(daemon: Daemon, tmp_path: Path) -> None:
    learner = training(tmp_path, epochs=5, held_out=True)
    async with ScriptedServer(_hesitates) as server:
        body = measuring(tmp_path, server.base_url, attempts=4)
        learning = (await daemon.client.post("jobs", body=learner))["job"]
        body["settings"]["chat"] |= {"prices": {"any": {"prompt": 3, "completion": 15}}, "budget_cost": 0.05}
        measured = (await daemon.client.post("jobs", body=body))["job"]
        assert (await end_of(daemon.client, measured))["state"] == "finished"
    settings = {"generate": {"count": 2, "seed": 3, "attempts": 4}}
    generation = {"kind": "generate", "settings": settings, "options": {"out": str(tmp_path / "made")}}
    job = (await daemon.client.post("jobs", body=generation))["job"]
    write(tmp_path / "shop")
    small = await submit(daemon.client, tmp_path / "shop", count=4, broken=["001"], mended="/nowhere")
    assert (await end_of(daemon.client, small))["state"] == "finished"
    assert (await end_of(daemon.client, job))["state"] == "finished"
    assert (await end_of(daemon.client, learning))["state"] == "finished"
    await submit(daemon.client, tmp_path / "long", count=5000, pace_s=0.3)
    await until(daemon.client, LONG, "done", times=6)


def _hesitates(request: dict, number: int) -> Reply | Fault:
    """Told to slow down at every fifth call."""
    return Fault(status=429, retry_after="0") if number % 5 == 2 else solves(request, number)


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
    assert f"{MADE} generate" in text
    before = site.browser.run("return document.querySelector('.flow').innerText")
    site.browser.until(f"document.querySelector('.flow').innerText !== {before!r}")
    assert site.browser.complaints() == []


def test_a_job_shows_its_yield_curves_and_events(site):
    text = site.show(f"/jobs/{MADE}", "job-generate")
    for word in ("draft", "certify", "taken", "passed", "Stages over time"):
        assert word in text
    text = site.show(f"/jobs/{SHOP}", "job-shop")
    assert site.browser.run("return document.querySelector('.events a').pathname").startswith(f"/jobs/{SHOP}/items/")
    assert "gave_up" in text


def test_a_training_job_shows_what_it_learns_and_where_its_evaluations_are(site):
    text = site.show(f"/jobs/{LEARNT}", "job-train")
    for word in ("Learning", "reward of a batch", "pass rate, held out", "staleness", "engine to learner gap"):
        assert word in text
    assert site.browser.run("return document.querySelectorAll('.events a').length") == 0  # its episodes have no page
    text = site.show(f"/jobs/{LEARNT}/out", "contents-train")
    assert "evaluations/end/trajectories.jsonl" in text
    assert "reward" in site.show(f"/jobs/{LEARNT}/out/trajectories/evaluations/end/trajectories.jsonl/0", "episode")


def test_an_evaluation_shows_its_rates_its_model_calls_and_its_budget(site):
    text = site.show(f"/jobs/{MEASURED}", "job-evaluate")
    for word in ("pass@1", "100.0 %", "answers a minute", "p95", "told to slow down (429)", "% of 0.05"):
        assert word in text
    assert "episode" not in text  # no sandbox of it is left


def test_an_item_whose_name_holds_slashes_has_its_page(site):
    assert "ended in 'rolled_out'" in site.show(f"/jobs/{MEASURED}/items/a/0/1", "item-episode")


def test_pages_fit_a_laptop(site):
    for path in ("/", f"/jobs/{LEARNT}", f"/jobs/{MEASURED}", f"/compare?a={LEARNT}&b={MEASURED}"):
        site.browser.open(site.base + path)
        assert site.browser.run("return document.documentElement.scrollWidth <= innerWidth"), path


def test_a_task_shows_instruction_files_tests_and_certificate(site):
    name = next(path.parent.name for path in (site.tmp_path / "made").glob("*/task.toml"))
    text = site.show(f"/jobs/{MADE}/out", "contents")
    assert name in text
    text = site.show(f"/jobs/{MADE}/out/tasks/{name}", "task")
    instruction = (site.tmp_path / "made" / name / "instruction.md").read_text().split("\n")[0]
    assert instruction in text
    assert "tests/test_outputs.py" in text
    assert "attempt" in text


def test_a_trajectory_replays_with_mistake_recovery_and_verdict_marked(site):
    site.show(f"/jobs/{SHOP}/out/trajectories/trajectories.jsonl", "trajectories")
    text = site.show(f"/jobs/{SHOP}/out/trajectories/trajectories.jsonl/0", "trajectory")
    assert "mistake: command_error" in text
    assert "recovery" in text
    assert "test_count" in text
    marks = site.browser.run("return [...document.querySelectorAll('.turn')].map(turn => turn.className)")
    assert marks == ["turn ", "turn mistake", "turn recovery", "turn "]


def test_keys_walk_turns_open_rows_and_go_to_the_next_trajectory(site):
    site.browser.open(site.base + f"/jobs/{SHOP}/out/trajectories/trajectories.jsonl")
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
    text = site.show(f"/jobs/{SHOP}/out/trajectories/trajectories.jsonl/3", "hostile")
    assert "<script>window.hacked = 1</script>" in text
    assert site.browser.run("return window.hacked === undefined")
    assert site.browser.run("return document.querySelectorAll('main img, main script').length") == 0


def test_two_jobs_are_compared(site):
    text = site.show(f"/compare?a={SHOP}&b={LONG}", "compare")
    assert SHOP in text
    assert site.browser.run("return document.querySelectorAll('figure').length") > 0


def test_a_job_is_paused_and_cancelled_from_its_page(site):
    site.browser.open(site.base + f"/jobs/{LONG}")
    site.browser.click(f"form[action='/jobs/{LONG}/pause'] button")
    site.browser.until("document.querySelector('h1 .badge').innerText === 'paused'")
    site.picture("job-paused")
    site.browser.click(f"form[action='/jobs/{LONG}/cancel'] button")
    site.browser.accept()
    site.browser.until("document.querySelector('h1 .badge').innerText === 'cancelled'")


def test_a_dead_letter_is_requeued_from_its_page(site):
    assert "gave_up: the plane is blunt" in site.show("/dead-letters", "dead-letters")
    site.browser.click("form[action$='/requeue'] button")
    site.browser.until(f"location.pathname === '/jobs/{SHOP}/items/001-r1'")
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
