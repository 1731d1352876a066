"""The moved clock: tests see another day, and everything that is no question of the day stays as it is."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

from generators.clock import MOVED_S, with_moved_clock
from generators.suites import final_suite

SOURCE = """
from __future__ import annotations
import datetime as d
import time
from datetime import date, datetime, timedelta, timezone

parsed = datetime.strptime("2026-03-01", "%Y-%m-%d")
assert parsed.date() == date(2026, 3, 1) and isinstance(parsed.date(), date) and isinstance(parsed, d.date)
assert not isinstance(parsed.date(), datetime) and datetime(2026, 3, 1) - parsed == timedelta(0)
assert isinstance(datetime.fromtimestamp(0, timezone.utc), datetime)
spread = [
    time.time(), time.time_ns() / 1e9, datetime.now().timestamp(), datetime.now(timezone.utc).timestamp(),
    datetime.utcnow().replace(tzinfo=timezone.utc).timestamp(), time.mktime(time.localtime()),
]
assert max(spread) - min(spread) < 86400, spread
assert time.strftime("%Y-%m-%d") == date.today().isoformat() == str(datetime.today().date())
assert time.gmtime(0).tm_year == 1970 and time.strftime("%Y", time.gmtime(0)) == "1970"
print(date.today().isoformat())
"""


def test_the_clock_is_ahead_and_values_behave(tmp_path: Path) -> None:
    (file,) = with_moved_clock(final_suite(SOURCE)).files
    module = tmp_path / file.path
    module.write_bytes(file.data)
    before = date.today()  # noqa: DTZ011  (the tests' own local day)
    ran = subprocess.run([sys.executable, "-I", module], capture_output=True, text=True, check=False, timeout=30)
    assert ran.returncode == 0, ran.stderr
    ahead = date.fromisoformat(ran.stdout.strip()) - before
    assert timedelta(seconds=MOVED_S) - timedelta(days=1) <= ahead <= timedelta(seconds=MOVED_S) + timedelta(days=2)


def test_names_of_tests_stay() -> None:
    suite = final_suite("def test_x() -> None: ...\n", ("test_x",))
    moved = with_moved_clock(suite)
    assert (moved.inventory, [file.path for file in moved.files]) == (("test_x",), ["test_outputs.py"])
