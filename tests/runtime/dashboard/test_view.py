"""`termloom view` as a program: it shows one folder to who has the address, and ends when it is told to."""

from __future__ import annotations

import http.client
import http.cookies
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.runtime.dashboard.samples import write

ROOT = Path(__file__).parents[3]


@contextmanager
def viewing(path: Path):
    line = [sys.executable, "-c", "from runtime.cli import main; main()", "view", str(path)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=60)
            assert child.returncode == 0


def get(address: str, path: str, cookie: str = "") -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def test_a_folder_is_shown_to_who_has_the_address(tmp_path):
    write(tmp_path)
    with viewing(tmp_path) as (_, address):
        parts = urlsplit(address)
        assert get(address, "/view")[0] == 401
        status, headers, _ = get(address, f"/?{parts.query}")
        assert status == 303
        cookie = http.cookies.SimpleCookie(headers["set-cookie"])["termloom"].OutputString([])
        assert "trajectories.jsonl" in get(address, "/view", cookie)[2]
        assert "recovery" in get(address, "/view/trajectories/trajectories.jsonl/0", cookie)[2]
        assert "policy_loss" in get(address, "/view/curves", cookie)[2]
        assert get(address, "/view/tasks/nothing", cookie)[0] == 404
        assert get(address, "/view/trajectories/..%2f..%2fetc%2fpasswd", cookie)[0] == 404
