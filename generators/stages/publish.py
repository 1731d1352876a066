"""publish: a selected task is written, whole or not at all."""

from __future__ import annotations

import dataclasses

import anyio.to_thread

from generators.assemble import assemble, directory_name
from generators.certificate import pass_rate
from generators.context import GenerationContext
from generators.handling import handles
from generators.messages import Published, Selected
from runtime.machine import writing
from runtime.stage import Message, Stage
from runtime.task import write_task


@handles("publish")
async def publish(message: Selected, context: GenerationContext) -> Message:
    solved = message.certified.solved
    task = dataclasses.replace(assemble(solved, seed=context.seed), certificate=message.certified.certificate)
    name = directory_name(solved)
    with writing(context.out / name):
        await anyio.to_thread.run_sync(write_task, task, context.out / name)
    return Published(
        item=message.item,
        run_id=message.run_id,
        directory=name,
        task_hash=task.hash(),
        category=solved.examined.draft.category,
        difficulty=solved.examined.draft.difficulty,
        pass_rate=pass_rate(solved.attempts),
    )


STAGE = Stage(
    name="publish",
    subscribes="selected",
    takes=Selected,
    publishes={Published: "published"},
    handler=publish,
)
