"""Who is known to live, who to be dead, and of whom nothing is known."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sandbox.owner import owner_is_alive, owner_is_dead, owner_token


def verdicts(token: str) -> tuple[bool, bool]:
    return owner_is_alive(token), owner_is_dead(token)


def test_this_process_is_alive_and_an_earlier_one_of_its_number_is_dead() -> None:
    here, pid, ticks = owner_token().split(":")
    assert verdicts(owner_token()) == (True, False)
    assert verdicts(f"{here}:{pid}:{int(ticks) - 1}") == (False, True)


def test_a_finished_process_is_dead() -> None:
    here, _, ticks = owner_token().split(":")
    process = subprocess.Popen(["true"])
    process.wait()
    assert verdicts(f"{here}:{process.pid}:{ticks}") == (False, True)


def test_a_zombie_is_dead() -> None:
    here = owner_token().split(":", maxsplit=1)[0]
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ticks = Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    assert verdicts(f"{here}:{child.pid}:{ticks}") == (False, True)
    child.wait()


def test_of_an_owner_elsewhere_nothing_is_known() -> None:
    here, pid, ticks = owner_token().split(":")
    boot, _, namespace = here.partition(".")
    for token in (f"other-boot.{namespace}:{pid}:{ticks}", f"{boot}.1:{pid}:{ticks}", ""):
        assert verdicts(token) == (False, False)
