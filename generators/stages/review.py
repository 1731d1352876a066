"""review: three scores, each above 4 of 5; else the draft goes back with the critique, a bounded number of times.

A draft whose public text gives its own answer away is not worth a review: it goes back with that.
"""

from __future__ import annotations

from generators.context import GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Blueprint, Draft, Drafted, Reviewed
from generators.truth import stated_truth
from runtime.stage import Message, Stage


@handles("review")
async def review(message: Drafted, context: GenerationContext) -> Message:
    draft, feedback, reason = message.draft, list[str](), ""
    for round_number in range(1, context.settings.review_rounds + 1):
        if round_number > 1:
            draft = await context.players.cast.drafter.draft(message.blueprint, feedback=feedback)
        reason, critique = await _objection(message.blueprint, draft, context)
        if not reason:
            return Reviewed(item=message.item, run_id=message.run_id, blueprint=message.blueprint, draft=draft)
        feedback.append(critique)
    raise UnfitError(reason, feedback[-1])


async def _objection(blueprint: Blueprint, draft: Draft, context: GenerationContext) -> tuple[str, str]:
    if stated := stated_truth(draft):
        return "truth_leak", f"The public text gives the answer away: {', '.join(map(repr, stated))}."
    review = await context.players.cast.reviewer.review(blueprint, draft)
    return ("", "") if review.accepted else ("review", review.critique)


STAGE = Stage(
    name="review",
    subscribes="drafted",
    takes=Drafted,
    publishes={Reviewed: "reviewed"},
    handler=review,
    slots=32,
    limits=("chat",),
)
