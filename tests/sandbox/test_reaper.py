"""Who is an orphan. The removal itself is tested against real engines."""

from __future__ import annotations

import subprocess

from sandbox.reaper import orphans, owner_is_dead, owner_token
from sandbox.spec import SandboxRecord


def record(name: str, *, owner: str = "alive", run_id: str = "a", expires_at: float = 100.0) -> SandboxRecord:
    return SandboxRecord(
        sandbox_id=name, engine="x", run_id=run_id, purpose="", owner=owner, created_at=0.0, expires_at=expires_at
    )


def chosen(*records: SandboxRecord, run_id: str | None = None) -> list[str]:
    found = orphans(records, now=50.0, is_dead=lambda owner: owner == "dead", run_id=run_id, owner="me")
    return [record.sandbox_id for record in found]


def test_expired_and_ownerless_are_orphans() -> None:
    assert chosen(record("kept"), record("old", expires_at=50.0), record("left", owner="dead")) == ["old", "left"]


def test_own_sandboxes_are_taken_only_at_the_end_of_their_run() -> None:
    mine, others = record("mine", owner="me"), record("others", run_id="b", owner="me")
    assert chosen(mine, others) == []
    assert chosen(mine, others, record("theirs"), run_id="a") == ["mine"]


def test_a_run_is_reaped_without_touching_another() -> None:
    assert chosen(record("x", owner="dead"), record("y", owner="dead", run_id="b"), run_id="b") == ["y"]


def test_this_process_is_alive_and_a_finished_one_is_dead() -> None:
    token = owner_token()
    assert not owner_is_dead(token)
    here, pid, ticks = token.rsplit(":", 2)
    assert owner_is_dead(f"{here}:{pid}:{int(ticks) + 1}")
    process = subprocess.Popen(["true"])
    process.wait()
    assert owner_is_dead(f"{here}:{process.pid}:{ticks}")


def test_a_zombie_is_dead() -> None:
    here, _, ticks = owner_token().rsplit(":", 2)
    with subprocess.Popen(["sleep", "0"]) as process:
        process.poll()
        waited = subprocess.run(
            ["bash", "-c", f"while kill -0 {process.pid} && ! grep -q Z /proc/{process.pid}/stat; do :; done"],
            check=False,
        )
        assert waited.returncode == 0
        assert owner_is_dead(f"{here}:{process.pid}:{ticks}")


def test_of_an_owner_elsewhere_nothing_is_known() -> None:
    assert not owner_is_dead("other-boot.1:1:1")
    assert not owner_is_dead("")
