"""Task directories: what is written is what is read, and nothing outside is ever touched."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from runtime import tree as module
from runtime.errors import TaskInvalid
from runtime.task import Task, TaskConfig, pack_task, read_task, unpack_task, write_task
from sandbox.spec import File

CONFIG = {
    "task": {"name": "termloom/sum-rows"},
    "metadata": {"category": "data processing", "difficulty": "easy", "termloom": {"inventory": ["test_sum"]}},
    "agent": {"timeout_sec": 900.0},
    "environment": {"memory_mb": 512, "cpus": 1.0, "network_mode": "no-network"},
}


def make_task(**changes: object) -> Task:
    fields: dict[str, object] = {
        "config": TaskConfig.model_validate(CONFIG),
        "instruction": "Add the rows of /home/agent/rows.txt — all of them.\n",
        "files": (
            File(path="environment/Dockerfile", data=b"FROM scratch\n"),
            File(path="environment/files/rows.txt", data=b"1\n2\n", mode=0o640),
            File(path="solution/solve.sh", data=b"#!/bin/bash\ntrue\n", mode=0o755),
            File(path="tests/test.sh", data=b"#!/bin/bash\ntrue\n", mode=0o755),
            File(path="tests/test_outputs.py", data=b"def test_sum() -> None:\n    assert True\n"),
        ),
        "certificate": b"{}\n",
    }
    return Task(**(fields | changes))  # type: ignore[arg-type]


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def write_foreign(directory: Path, config: str) -> Path:
    (directory / "environment").mkdir(parents=True)
    (directory / "tests").mkdir()
    (directory / "task.toml").write_text(config)
    (directory / "instruction.md").write_text("Do it.\n")
    (directory / "environment" / "Dockerfile").write_text("FROM debian\n")
    (directory / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return directory


def problems_of(directory: Path) -> str:
    with pytest.raises(TaskInvalid) as caught:
        read_task(directory)
    return "\n".join(caught.value.problems)


def test_a_written_task_reads_back_equal(tmp_path: Path) -> None:
    task = make_task()
    write_task(task, tmp_path / "t")
    again = read_task(tmp_path / "t")
    assert again == task
    assert again.hash() == task.hash()


def test_a_packed_task_is_unpacked_equal_and_what_is_none_is_refused() -> None:
    assert unpack_task(pack_task(make_task())) == make_task()
    with pytest.raises(TaskInvalid, match=r"instruction\.md is missing"):
        unpack_task(msgspec.msgpack.encode([File(path="task.toml", data=b"")]))


def test_two_writes_give_the_same_bytes_and_modes_whatever_the_umask(tmp_path: Path) -> None:
    write_task(make_task(), tmp_path / "a")
    before = os.umask(0o077)
    try:
        write_task(make_task(), tmp_path / "b")
    finally:
        os.umask(before)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert (tmp_path / "b" / "environment").stat().st_mode & 0o777 == 0o755


def test_writing_over_a_directory_replaces_it_and_leaves_no_neighbour(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "stale").write_text("old")
    (tmp_path / ".t.partial").mkdir()
    write_task(make_task(), tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert not (tmp_path / "t" / "stale").exists()


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "tests/../../evil", "a//b", "", "./a"])
def test_a_path_that_leads_out_is_never_written(tmp_path: Path, path: str) -> None:
    task = make_task(files=(*make_task().files, File(path=path, data=b"x")))
    with pytest.raises(TaskInvalid):
        write_task(task, tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    files = make_task().files
    with pytest.raises(TaskInvalid, match=r"'tests/test\.sh' occurs twice"):
        write_task(make_task(files=(*files, files[3])), tmp_path / "t")


def test_the_hash_changes_with_content_mode_and_name_but_not_with_the_certificate() -> None:
    base = make_task()
    *rest, last = base.files
    assert make_task(certificate=None).hash() == base.hash()
    changed = [
        make_task(instruction="Other.\n"),
        make_task(files=(*rest, File(path=last.path, data=last.data + b"#\n"))),
        make_task(files=(*rest, File(path=last.path, data=last.data, mode=0o600))),
        make_task(files=(*rest, File(path="tests/test_other.py", data=last.data))),
    ]
    assert len({base.hash(), *(task.hash() for task in changed)}) == 5


def test_an_old_task_file_is_read_and_unknown_keys_survive_a_rewrite(tmp_path: Path) -> None:
    config = (
        'version = "1.0"\nsource = "elsewhere"\n[metadata]\nauthor_name = "A"\nmade = 2020-01-02\n'
        "[verifier]\ntimeout_sec = 240\n"
        '[environment]\nmemory = "2G"\nstorage = "10G"\nallow_internet = true\ngpus = 0\n'
        '[[environment.mcp_servers]]\nname = "m"\n'
    )
    task = read_task(write_foreign(tmp_path / "old", config))
    assert (task.config.schema_version, task.config.environment.memory_mb) == ("1.4", 2048)
    assert task.config.environment.network_mode == "public"
    write_task(task, tmp_path / "new")
    written = (tmp_path / "new" / "task.toml").read_text()
    for kept in ('source = "elsewhere"', "made = 2020-01-02", "gpus = 0", 'name = "m"', "storage_mb = 10240"):
        assert kept in written
    assert "allow_internet" not in written
    assert read_task(tmp_path / "new") == task


def test_a_foreign_task_is_graded_by_its_own_script_and_ours_by_the_trusted_grader(tmp_path: Path) -> None:
    foreign = read_task(write_foreign(tmp_path / "t", 'schema_version = "1.4"\n')).suite()
    ours = make_task().suite()
    assert (foreign.mode, [f.path for f in foreign.files]) == ("harbor", ["test.sh"])
    assert (ours.mode, [f.path for f in ours.files], ours.inventory) == ("trusted", ["test_outputs.py"], ("test_sum",))


def test_the_build_context_holds_the_environment_and_nothing_else() -> None:
    context = make_task().context()
    assert context.dockerfile == "FROM scratch\n"
    assert [(f.path, f.mode) for f in context.files] == [("files/rows.txt", 0o640)]
    assert not context.network


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    directory = write_foreign(tmp_path / "t", "[agent]\ntimeout_sec = -1\n[environment]\nmemory = 'lots'\n")
    (directory / "instruction.md").write_bytes(b"caf\xe9")
    (directory / "tests" / "test.sh").unlink()
    told = problems_of(directory)
    for part in (
        "agent.timeout_sec",
        "'lots' is not a size",
        "instruction.md is not UTF-8 (byte 3)",
        "tests/test.sh is missing",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("", "task.toml is empty"),
        ("[agent\n", "task.toml: "),
        ("a = " + "[" * 5000, "task.toml: maximum recursion depth"),
        ('schema_version = "2.0"\n', "'2.0' is not known"),
        ('[[steps]]\nname = "one"\n', "multi-step"),
    ],
)
def test_a_task_file_that_cannot_be_used_is_a_problem(tmp_path: Path, config: str, problem: str) -> None:
    assert problem in problems_of(write_foreign(tmp_path / "t", config))


def test_links_and_special_files_never_lead_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    directory = write_foreign(tmp_path / "t", 'schema_version = "1.4"\n')
    (directory / "out").symlink_to(tmp_path / "secret")
    (directory / "folder").symlink_to(tmp_path)
    (directory / "loop").symlink_to("loop")
    (directory / "dangling").symlink_to("nowhere")
    os.mkfifo(directory / "pipe")
    told = problems_of(directory)
    assert "out: a symbolic link out of the task directory" in told
    assert "folder: a symbolic link out" in told
    assert "loop: symbolic links in a loop" in told
    assert "dangling: No such file" in told
    assert "pipe: not a regular file" in told


def test_a_link_inside_the_directory_is_read_as_the_file_it_names(tmp_path: Path) -> None:
    directory = write_foreign(tmp_path / "t", 'schema_version = "1.4"\n')
    (directory / "tests" / "alias.sh").symlink_to("test.sh")
    assert read_task(directory).text("tests/alias.sh") == read_task(directory).text("tests/test.sh")


def test_what_is_too_large_too_many_or_too_deep_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_foreign(tmp_path / "t", 'schema_version = "1.4"\n')
    (directory / "environment" / "big").write_bytes(b"x" * 100)
    (directory / "a" / "b" / "c").mkdir(parents=True)
    for name, value in (("MAX_FILE_BYTES", 99), ("MAX_TASK_BYTES", 30), ("MAX_DEPTH", 2), ("MAX_FILES", 4)):
        monkeypatch.setattr(module, name, value)
    told = problems_of(directory)
    for part in (
        "environment/big: 100 bytes",
        "holds more than 30 bytes",
        "a/b/c: more than 2 directories",
        "more than 4 files",
    ):
        assert part in told


def test_a_directory_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "nowhere") == "not a directory"
