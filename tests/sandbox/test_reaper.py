"""Who is an orphan. The removal itself is tested against real engines."""

from __future__ import annotations

from sandbox.reaper import orphans
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
