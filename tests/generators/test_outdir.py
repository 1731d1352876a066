"""Nobody's files are overwritten, and an unfinished run is named with its remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from generators.outdir import MANIFEST, RunPlace, place_of, prepare, write_manifest
from runtime.errors import UserError
from runtime.store import Store


@pytest.fixture(params=["generate", "synthesize"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> RunPlace:
    return place_of(tmp_path / "out", tmp_path / "state", request.param)


def begin(place: RunPlace) -> None:
    prepare(place, resume=False)
    place.store.touch()


def test_a_new_run_makes_its_directories(place: RunPlace) -> None:
    prepare(place, resume=False)
    assert place.out.is_dir()
    assert place.state.is_dir()
    assert list(place.out.iterdir()) == []


def test_other_files_are_refused(place: RunPlace) -> None:
    place.out.mkdir()
    (place.out / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds files that are not ours"):
        prepare(place, resume=False)


def test_an_unfinished_run_wants_resume(place: RunPlace) -> None:
    begin(place)
    with pytest.raises(UserError, match="Use --resume"):
        prepare(place, resume=False)
    (place.out / "task").mkdir()
    with pytest.raises(UserError, match="holds the output of an unfinished run"):
        prepare(place, resume=False)
    prepare(place, resume=True)


def test_a_finished_set_is_refused(place: RunPlace) -> None:
    begin(place)
    write_manifest(place, {"tasks": []})
    with pytest.raises(UserError, match="output of a finished run"):
        prepare(place, resume=False)


def test_deleting_the_output_begins_anew(place: RunPlace) -> None:
    begin(place)
    place.out.rmdir()
    prepare(place, resume=False)
    assert not place.store.exists()


async def test_the_state_of_a_run_in_work_outlives_its_output(place: RunPlace) -> None:
    begin(place)
    async with Store(place.store) as store:
        await store.open_run(place.run_id, command="test", settings="{}")
        place.out.rmdir()
        with pytest.raises(UserError, match=f"was deleted while process {os.getpid()} writes into it"):
            prepare(place, resume=False)
        assert place.store.exists()
    prepare(place, resume=False)
    assert not place.store.exists()


@pytest.mark.parametrize("began", ["as a file", "in earnest"])
async def test_a_run_whose_output_was_deleted_cannot_be_resumed(place: RunPlace, began: str) -> None:
    begin(place)
    if began == "in earnest":
        async with Store(place.store) as store:
            await store.open_run(place.run_id, command="test", settings="{}")
            await store.finish(place.run_id)
    place.out.rmdir()
    with pytest.raises(UserError, match=r"was deleted, .*\. Leave out --resume"):
        prepare(place, resume=True)
    assert not place.out.exists()
    prepare(place, resume=False)


def test_there_must_be_something_to_resume(place: RunPlace) -> None:
    with pytest.raises(UserError, match="no run that could be resumed"):
        prepare(place, resume=True)


def test_an_output_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="Choose another --out"):
            prepare(place_of(out, tmp_path / "state"), resume=False)


def test_a_state_directory_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Choose another state directory"):
        prepare(place_of(tmp_path / "out", tmp_path / "file"), resume=False)
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_killed_while_it_looked_can_begin(place: RunPlace) -> None:
    place.out.mkdir()
    (place.out / ".writable.partial").touch()
    prepare(place, resume=False)
    assert list(place.out.iterdir()) == []


def test_the_key_is_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state"
    assert place_of(Path("out"), state) == place_of(tmp_path / "x" / ".." / "out", state)
    assert place_of(Path("out"), state) != place_of(Path("out2"), state)


def test_a_manifest_appears_whole(place: RunPlace) -> None:
    begin(place)
    write_manifest(place, {"tasks": ["a"]})
    assert [path.name for path in place.out.iterdir()] == [MANIFEST]
    assert json.loads((place.out / MANIFEST).read_text()) == {"schema_version": 1, "tasks": ["a"]}
