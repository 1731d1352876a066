"""An image goes with the last item that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generators.images import HeldImages
from generators.job import JOB
from generators.run import Begun
from runtime.limits import Limits
from tests.generators.running import settings_for


class Shelf:
    """Stands for an engine: the images that were removed."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    async def remove_image(self, image: str) -> None:
        self.removed.append(image)


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


async def test_with_a_bound_those_go_whose_items_took_none_for_longest() -> None:
    images, engine = HeldImages(most=2), Shelf()
    held: Any = engine
    for image, item in (("x", "a"), ("y", "b"), ("x", "a"), ("z", "c"), ("x", "d")):
        images.hold(image, item)
        await images.release_beyond(held)
    assert engine.removed == ["y"], "x is still held by d"
    await images.release_all(held)
    assert sorted(engine.removed) == ["x", "y", "z"]
    await images.release_beyond(held)


async def test_a_worker_of_generation_keeps_a_bounded_number_of_images(tmp_path: Path) -> None:
    settings, engine = settings_for(tmp_path), Shelf()
    recorded = Begun(generate=settings.generate, agent=settings.agent).model_dump_json()
    held: Any = engine
    assert JOB.travel is not None
    async with JOB.travel.worker(settings, "run", recorded, held, Limits(settings.limits.sizes())) as context:
        for number in range(100):
            context.images.hold(f"image {number}", f"item {number}")
            await context.images.release_beyond(held)
        assert engine.removed == [f"image {number}" for number in range(36)]
