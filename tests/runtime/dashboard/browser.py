"""Headless Chromium over the WebDriver protocol, as far as the tests need it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.machine import absent

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_SIZE = (1280, 800)
_TALLEST = 2400
"""Pixels of a picture."""
_PATIENCE_S = 60.0


class Browser:
    """One window. Use as a context manager."""

    def __init__(self) -> None:
        if not shutil.which("chromedriver"):
            absent("no chromedriver on the path (Debian: apt-get install chromium chromium-driver)")

    def __enter__(self) -> Self:
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        port = next(
            found[1] for line in self._driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
        )
        self._base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments.append(f"--window-size={_SIZE[0]},{_SIZE[1]}")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except OSError:
            self._end_driver()
            raise
        self._base += f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._ask("DELETE", "")
        self._end_driver()

    def _end_driver(self) -> None:
        self._driver.terminate()
        self._driver.wait(60)
        self._driver.stdout.close()

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        return self._ask("GET", "/url")

    def run(self, script: str, *arguments: Any) -> Any:
        """JavaScript in the page; `return` gives a value."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, condition: str) -> Any:
        """Wait until the expression is true in a page that is whole, and return it. The page may change meanwhile."""
        script = f"try {{ return document.readyState === 'complete' && ({condition}) }} catch (e) {{ return false }}"
        patience_ends = time.monotonic() + _PATIENCE_S
        while not (found := self.run(script)):
            assert time.monotonic() < patience_ends, f"never: {condition}"
            time.sleep(0.05)
        return found

    def press(self, keys: str) -> None:
        presses = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": presses}]})

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)  # what has the focus is not replaced
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{element[_ELEMENT]}/click", {})

    def accept(self) -> None:
        """Say yes to the question that the page asks."""
        self._ask("POST", "/alert/accept", {})

    def text(self) -> str:
        return self.run("return document.body.innerText")

    def complaints(self) -> list[str]:
        """What the browser had to complain about: refused scripts, failed requests, errors."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        """Of the whole page, as far as it goes down."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self._devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], _TALLEST), "scale": 1}
        taken = self._devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
