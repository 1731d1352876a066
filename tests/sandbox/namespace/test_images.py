"""Built images are shared by all who open the directory: nobody takes one away from under another."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.errors import ImageMissing
from sandbox.namespace.images import Image, ImageConfig, Images

BUILT = "b" * 64


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "images").mkdir()
    return tmp_path


def opened(directory: Path) -> Images:
    return Images(directory / "images", directory / "rootfs")


def build(images: Images) -> Image:
    images.make_scratch("builder")
    images.commit("builder", BUILT, images.base, ImageConfig())
    image = images.find(BUILT)
    assert image is not None
    return image


def test_an_image_is_left_as_long_as_anybody_holds_it(directory: Path) -> None:
    ours, theirs = opened(directory), opened(directory)
    image = build(ours)
    for sandbox in ("one", "two"):
        ours.hold(image, sandbox)
    for sandbox in ("one", "two"):
        for images in (ours, theirs):
            images.remove_built(BUILT)
            assert images.find(BUILT) == image
        ours.let_go(sandbox)
        ours.let_go(sandbox)
    theirs.remove_built(BUILT)
    assert ours.find(BUILT) is None
    assert list((directory / "images").iterdir()) == []


def test_a_frozen_image_holds_what_it_stands_on(directory: Path) -> None:
    ours, theirs = opened(directory), opened(directory)
    image = build(ours)
    ours.hold(image, "player")
    frozen = ours.frozen("player", image)
    ours.let_go("player")
    theirs.remove_built(BUILT)
    ours.hold(frozen, "grader")
    ours.release(frozen.id)
    theirs.remove_built(BUILT)
    assert theirs.find(BUILT) is not None
    with pytest.raises(ImageMissing):
        ours.hold(frozen, "late")
    ours.let_go("grader")
    theirs.remove_built(BUILT)
    assert theirs.find(BUILT) is None


def test_an_image_that_went_before_it_was_held_is_missing(directory: Path) -> None:
    ours, theirs = opened(directory), opened(directory)
    image = build(ours)
    theirs.remove_built(BUILT)
    with pytest.raises(ImageMissing, match=BUILT):
        ours.hold(image, "late")
    build(theirs)
    ours.hold(image, "later")
    theirs.remove_built(BUILT)
    assert theirs.find(BUILT) == image


def test_a_lock_of_a_file_that_was_replaced_meanwhile_is_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = opened(directory), opened(directory)
    image = build(ours)

    def remade(*_: object) -> None:
        monkeypatch.undo()
        theirs.remove_built(BUILT)
        build(theirs)

    monkeypatch.setattr("sandbox.namespace.images.fcntl.flock", remade)
    with pytest.raises(ImageMissing):
        ours.hold(image, "unlucky")
    theirs.remove_built(BUILT)
    assert theirs.find(BUILT) is None


def test_closing_lets_go_of_everything(directory: Path) -> None:
    ours, theirs = opened(directory), opened(directory)
    image = build(ours)
    ours.hold(image, "left")
    ours.close()
    theirs.remove_built(BUILT)
    assert theirs.find(BUILT) is None
