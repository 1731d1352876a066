"""An image goes with the last item that needs it."""

from __future__ import annotations

from generators.images import HeldImages


def test_an_image_goes_with_its_last_holder() -> None:
    images = HeldImages()
    for image, item in (("shared", "a"), ("shared", "b"), ("first try", "a"), ("second try", "a")):
        images.hold(image, item)
    assert images.give_up("a") == ["first try", "second try"]
    assert images.give_up("a") == []
    assert images.give_up("b") == ["shared"]


def test_holding_twice_is_holding_once() -> None:
    images = HeldImages()
    images.hold("x", "a")
    images.hold("x", "a")
    assert images.give_up("a") == ["x"]
