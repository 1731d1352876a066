"""COPY against a build context."""

import pytest

from sandbox.dockerfile import Copy, DockerfileError, parse
from sandbox.namespace.context import select
from sandbox.spec import File


def placed(copy_line: str, *paths: str) -> dict[str, str]:
    files = [File(path=path, data=b"") for path in paths]
    return {item.path: item.inside for item in select(_copy(copy_line), files)}


def _copy(line: str) -> Copy:
    step = parse(f"FROM base\nWORKDIR /w\n{line}\n", engine="test", environment={}).steps[-1]
    assert isinstance(step, Copy)
    return step


def test_copy_places_files_as_docker_does():
    tree = ("a.txt", "b.txt", "d/x", "d/e/y")
    assert placed("COPY a.txt /srv/name", *tree) == {"/srv/name": "a.txt"}
    assert placed("COPY a.txt /srv/", *tree) == {"/srv/a.txt": ""}
    assert placed("COPY a.txt .", *tree) == {"/w/a.txt": ""}
    assert placed("COPY a.txt b.txt sub/", *tree) == {"/w/sub/a.txt": "", "/w/sub/b.txt": ""}
    assert placed("COPY *.txt /t/", *tree) == {"/t/a.txt": "", "/t/b.txt": ""}
    assert placed("COPY d /t", *tree) == {"/t/x": "", "/t/e/y": ""}
    assert placed("COPY ./d/ /t/", *tree) == {"/t/x": "", "/t/e/y": ""}
    assert placed("COPY d/* /t/", *tree) == {"/t/x": "", "/t/y": ""}
    assert placed("COPY . /", *tree) == {f"/{path}": "" for path in tree}
    assert placed('COPY ["a.txt", "/with space/"]', *tree) == {"/with space/a.txt": ""}
    assert placed("ADD a.txt /t/", *tree) == {"/t/a.txt": ""}
    with pytest.raises(DockerfileError, match=r"'c\.txt' is not in the build context"):
        placed("COPY c.txt /t", *tree)


def test_the_mode_is_the_files_unless_the_instruction_says_another():
    file = File(path="a", data=b"x", mode=0o640)
    assert select(_copy("COPY a /t"), [file])[0].mode == 0o640
    assert select(_copy("COPY --chmod=600 a /t"), [file])[0].mode == 0o600
    assert select(_copy("COPY --chown=agent a /t"), [file])[0].owner == "agent"
