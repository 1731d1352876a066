"""The stages of generation, one module each, in the order in which an item passes them."""

from generators.stages import certify, draft, examine, furnish, publish, review, solve

STAGES = (draft.STAGE, review.STAGE, furnish.STAGE, examine.STAGE, solve.STAGE, certify.STAGE, publish.STAGE)

__all__ = ["STAGES"]
