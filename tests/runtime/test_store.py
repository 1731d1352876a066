"""The store: one commit is one transaction, and what a crash leaves is what is left to do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from runtime.database import Database, _migrations
from runtime.errors import ItemConflict, StoreError
from runtime.store import Call, Entry, Note, Store, live_owner
from sandbox.owner import owner_token


def entry(queue: str, item: str, *, terminal: bool = False) -> Entry:
    return Entry(queue=queue, item=item, body=f"{queue}/{item}".encode(), terminal=terminal)


def nothing(_: Entry) -> list[Entry]:
    return []


async def opened(store: Store, *entries: Entry) -> None:
    await store.open_run("r", command="test", settings="{}")
    await store.start("r", entries)


async def test_the_live_owner_of_a_run_is_told_without_opening_its_store(tmp_path: Path):
    path = tmp_path / "s.db"
    assert live_owner(path, "r") is None
    assert not path.exists()
    async with Store(path) as store:
        await opened(store)
        assert live_owner(path, "r") == os.getpid()
        assert live_owner(path, "another") is None
        here, _, _ = owner_token().split(":")
        await store._database.transact(
            lambda connection: connection.execute("UPDATE leases SET owner = ?", (f"{here}:{os.getpid()}:1",))
        )
        assert live_owner(path, "r") is None
    path.write_text("no database")
    assert live_owner(path, "r") is None


async def test_an_item_moves_from_queue_to_queue_and_to_its_end(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"), entry("a", "2"))
        await store.commit("r", done=("a", "1"), outputs=[entry("b", "1")], settle=nothing)
        assert [(e.queue, e.item, e.body) for e in await store.pending("r")] == [("a", "2", b"a/2"), ("b", "1", b"b/1")]
        await store.commit("r", done=("b", "1"), outputs=[entry("end", "1", terminal=True)], settle=nothing)
        assert [e.body for e in await store.terminal("r")] == [b"end/1"]
        tally = await store.tally("r")
        assert (tally.items, tally.pending, tally.terminal) == (2, 1, 1)
        assert await store.counts("r") == {
            ("a", "done"): 1, ("a", "pending"): 1, ("b", "done"): 1, ("end", "terminal"): 1
        }  # fmt: skip


async def test_a_second_commit_of_the_same_input_changes_nothing(tmp_path: Path):
    settled: list[str] = []

    def settle(e: Entry) -> list[Entry]:
        settled.append(e.item)
        return [entry("a", f"after-{e.item}")]

    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"))
        end = [entry("end", "1", terminal=True)]
        admitted = await store.commit("r", done=("a", "1"), outputs=end, settle=settle)
        assert [e.item for e in admitted or ()] == ["after-1"]
        assert await store.commit("r", done=("a", "1"), outputs=end, settle=settle) is None
        assert settled == ["1"]
        assert [e.item for e in await store.pending("r")] == ["after-1"]


async def test_an_item_cannot_be_in_two_places_and_the_refused_commit_leaves_no_trace(tmp_path: Path):
    settled: list[str] = []

    def settle(e: Entry) -> list[Entry]:
        settled.append(e.item)
        return []

    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"), entry("a", "2"))
        outputs = [entry("end", "1", terminal=True), entry("b", "2")]
        with pytest.raises(ItemConflict, match="item '2' cannot go to queue 'b'"):
            await store.commit("r", done=("a", "1"), outputs=outputs, settle=settle)
        assert settled == []
        assert [(e.queue, e.item) for e in await store.pending("r")] == [("a", "1"), ("a", "2")]


async def test_an_item_passes_each_queue_once(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"))
        await store.commit("r", done=("a", "1"), outputs=[entry("b", "1")], settle=nothing)
        with pytest.raises(ItemConflict):
            await store.commit("r", done=("b", "1"), outputs=[entry("a", "1")], settle=nothing)


async def test_the_first_admissions_are_recorded_once(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        await store.open_run("r", command="test", settings="{}")
        assert await store.start("r", [entry("a", "1")])
        assert not await store.start("r", [entry("a", "2")])
        assert [e.item for e in await store.pending("r")] == ["1"]


async def test_failed_attempts_are_counted_and_journalled_across_restarts(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"))
        note = Note(item="1", kind="retry", stage="s", detail="the engine hung")
        assert await store.fail("r", at=("a", "1"), note=note) == 1
    async with Store(tmp_path / "s.db") as store:
        assert await store.fail("r", at=("a", "1"), note=note) == 2
        assert (await store.pending("r"))[0].attempts == 2
        assert [n.detail for n in await store.journal("r", item="1")] == ["the engine hung"] * 2
        assert await store.journal("r", item="2") == []


async def test_a_cancelled_commit_is_whole(tmp_path: Path):
    """The caller is cancelled while the transaction runs: the transaction finishes."""
    scope = anyio.CancelScope()

    def settle(e: Entry) -> list[Entry]:
        anyio.from_thread.run_sync(scope.cancel)
        return [entry("a", "2")]

    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"))
        with scope:
            await store.commit("r", done=("a", "1"), outputs=[entry("end", "1", terminal=True)], settle=settle)
        assert scope.cancel_called
        assert [e.item for e in await store.pending("r")] == ["2"]
        assert [e.item for e in await store.terminal("r")] == ["1"]


async def test_a_call_is_paid_once(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        first = Call(
            key="k", request_digest="d", response=b"one", prompt_tokens=10, completion_tokens=2, cost=0.5, attempts=1
        )
        assert await store.call("k") is None
        await store.record_call(first)
        await store.record_call(Call(**{**{f: getattr(first, f) for f in first.__struct_fields__}, "response": b"two"}))
        assert await store.call("k") == first
        assert await store.calls() == (1, 10, 2, 0.5)


async def test_a_newer_schema_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "s.db"
    async with Store(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schema_version VALUES (99)")
    connection.close()
    with pytest.raises(StoreError, match=r"s\.db: its schema is version 99, this program knows 3\. Use a newer"):
        async with Store(path):
            pass


async def test_a_file_that_is_no_database_is_an_error_with_a_remedy(tmp_path: Path):
    path = tmp_path / "s.db"
    path.write_bytes(b"something else entirely, and long enough" * 100)
    with pytest.raises(StoreError, match=r"not a database\. Move the file away"):
        async with Store(path):
            pass


async def test_a_full_disk_is_a_store_error_and_what_was_committed_stays(tmp_path: Path):
    async with Store(tmp_path / "s.db") as store:
        await opened(store, entry("a", "1"))
        database = store._database

        def shrink(connection: sqlite3.Connection) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")

        await database.transact(shrink)
        big = Entry(queue="b", item="1", body=bytes(1 << 20))
        with pytest.raises(StoreError, match=r"full\. Free space on that disk"):
            await store.commit("r", done=("a", "1"), outputs=[big], settle=nothing)
        assert [(e.queue, e.item) for e in await store.pending("r")] == [("a", "1")]


async def test_a_locked_file_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runtime.database._BUSY_S", 0.01)
    async with Store(tmp_path / "s.db") as store:
        other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"locked\. Another process holds the store"):
            await store.open_run("r", command="test", settings="{}")
        other.close()


async def test_a_run_is_looked_at_while_another_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "s.db"
    async with Store(path) as store:
        await opened(store, entry("a", "1"))
    monkeypatch.setattr("runtime.database._BUSY_S", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with Store(path) as store:
            assert [run.run for run in await store.runs()] == ["r"]
            assert [e.item for e in await store.pending("r")] == ["1"]
            assert await store.terminal("r") == []
            assert await store.items("r") == {"1"}
            assert (await store.tally("r")).pending == 1
            assert await store.where("r", "1") is not None
            assert await store.counts("r") == {("a", "pending"): 1}
            assert await store.dead_letters("r") == []
            assert await store.journal("r") == []
            assert await store.call("k") is None
            assert await store.calls() == (0, 0, 0, 0.0)


async def test_the_sum_of_all_calls_is_read_without_their_answers(tmp_path: Path):
    asked: list[str] = []

    def listen(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(asked.append)

    def plan(connection: sqlite3.Connection) -> str:
        connection.set_trace_callback(None)
        (query,) = [statement for statement in asked if statement.startswith("SELECT")]
        return str([tuple(row) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")])

    async with Store(tmp_path / "s.db") as store:
        await store._database.read(listen)
        await store.calls()
        assert "COVERING INDEX call_totals" in await store._database.read(plan)


async def test_a_file_of_an_older_schema_is_brought_up_to_date_with_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, migrations = tmp_path / "s.db", _migrations()
    with monkeypatch.context() as older:
        older.setattr("runtime.database._migrations", lambda: migrations[:1])
        async with Store(path) as store:
            await opened(store, entry("a", "1"))
    async with Store(path) as store:
        assert [e.item for e in await store.pending("r")] == ["1"]
        assert await store.dead_letters("r") == []
    with closing(sqlite3.connect(path)) as connection:
        versions = connection.execute("SELECT version FROM schema_version").fetchall()
    assert versions == [(number + 1,) for number in range(len(migrations))]


async def test_a_closed_database_says_so(tmp_path: Path):
    with pytest.raises(StoreError, match="not open"):
        await Database(tmp_path / "s.db").transact(lambda connection: None)


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def test_a_run_belongs_to_one_live_process(tmp_path: Path):
    script = (
        "import sys, anyio\nfrom pathlib import Path\nfrom runtime.store import Store\n"
        "async def main():\n"
        "    async with Store(Path(sys.argv[1])) as store:\n"
        "        await store.open_run('r', command='other', settings='{}')\n"
        "        print('open', flush=True)\n"
        "        sys.stdin.read()\n"
        "anyio.run(main)\n"
    )
    path = tmp_path / "s.db"
    child = start(script, path)
    try:
        assert child.stdout.readline() == "open\n"
        async with Store(path) as store:
            with pytest.raises(StoreError, match=f"process {child.pid} works on run 'r'"):
                await store.open_run("r", command="mine", settings="{}")
            child.kill()
            child.wait()
            taken = await store.open_run("r", command="mine", settings="{}")
            assert taken.command == "other"  # the run is the one that was begun
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
