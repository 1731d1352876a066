"""A task's image is there when an episode needs it, whoever else works in the same state directory."""

import shutil

import anyio
import pytest

from runtime.agent.scripted import ScriptedPolicy
from runtime.agent.settings import AgentSettings
from sandbox.base import BASE_DOCKERFILE
from sandbox.errors import ImageMissing
from tests.trainer.world import make_task, open_world

pytestmark = pytest.mark.namespace
DOCKERFILE = BASE_DOCKERFILE + "RUN echo here > /srv/here\n"
RIGHT = ("<command>cp /srv/here ~/a.txt; echo a > ~/a.txt</command>", "<action>done</action>")


async def play(arena, task, number):
    return await arena.play(task, ScriptedPolicy(RIGHT), AgentSettings(max_turns=4), item=f"a/0/{number}")


async def test_an_image_that_another_process_removed_is_built_again_once(tmp_path, monkeypatch):
    async with open_world(tmp_path / "state") as (engine, arena):
        task = make_task(tmp_path, "a", dockerfile=DOCKERFILE)
        place = await arena.place(task)
        await engine.remove_image(place.image)
        shutil.rmtree(task)  # the run goes on with the task as it was read
        built, build = [], engine.build

        async def noted(context):
            built.append(context)
            return await build(context)

        monkeypatch.setattr(engine, "build", noted)
        rewards = []

        async def episode(number):
            rewards.append((await play(arena, task, number)).reward)

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(episode, number)
        assert rewards == [1.0] * 4
        assert len(built) == 1
        assert (await arena.place(task)).hash == place.hash


async def test_an_image_that_stays_away_is_a_fault(tmp_path, monkeypatch):
    async with open_world(tmp_path / "state") as (engine, arena):
        task = make_task(tmp_path, "a", dockerfile=DOCKERFILE)

        async def create(spec):
            raise ImageMissing("namespace", spec.image)

        monkeypatch.setattr(engine, "create", create)
        with pytest.raises(ImageMissing):
            await play(arena, task, 0)
