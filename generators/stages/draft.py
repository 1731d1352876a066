"""draft: a blueprint becomes a public instruction and a private truth."""

from __future__ import annotations

from generators.context import GenerationContext
from generators.handling import handles
from generators.messages import Drafted, Sampled
from runtime.stage import Message, Stage


@handles("draft")
async def draft(message: Sampled, context: GenerationContext) -> Message:
    draft = await context.players.cast.drafter.draft(message.blueprint)
    return Drafted(item=message.item, run_id=message.run_id, blueprint=message.blueprint, draft=draft)


STAGE = Stage(
    name="draft",
    subscribes="sampled",
    takes=Sampled,
    publishes={Drafted: "drafted"},
    handler=draft,
    slots=32,
    limits=("chat",),
)
