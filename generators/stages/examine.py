"""examine: final tests that agree with the instruction, as a judge finds, and fail on the untouched environment.

They must fail by assertion: at least one test is collected, at least one fails, and none raises anything else, for a
test that breaks on a missing file says nothing about right and wrong.
"""

from __future__ import annotations

from generators.context import GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Examined, Furnished
from generators.roles import Judgement
from generators.suites import final_suite, named, report
from generators.telltales import network_wanted
from runtime.stage import Message, Stage
from sandbox.spec import Verdict


@handles("examine")
async def examine(message: Furnished, context: GenerationContext) -> Message:
    cast, feedback, reason = context.players.cast, list[str](), ""
    bench = context.bench(message.item, message.environment)
    parts = (message.draft, message.environment)
    image = await bench.image()
    for _ in range(context.settings.examine_rounds):
        source = await cast.examiner.examine(message.blueprint, *parts, feedback=feedback)
        judgement = await cast.judge.judge(*parts, source)
        if not judgement.agreed:
            reason, problem = "unstated" if judgement.unstated else "untested", _disagreement(judgement)
        else:
            verdict = await bench.grade(image, final_suite(source), "untouched")
            reason, problem = objection(verdict)
            if not reason:
                return Examined(
                    item=message.item,
                    run_id=message.run_id,
                    blueprint=message.blueprint,
                    draft=message.draft,
                    environment=message.environment,
                    final_tests=source,
                    inventory=tuple(sorted(test.name for test in verdict.tests)),
                    failing=named(verdict.tests, "failed"),
                )
        feedback.append(problem)
    raise UnfitError(reason, feedback[-1])


def objection(verdict: Verdict) -> tuple[str, str]:
    """What a run on the untouched environment says against the tests: reason class and words, or nothing."""
    if words := network_wanted(verdict):
        return "needs_network", f"Grading has no network, and the tests want one ({words}).\n{report(verdict)}"
    if named(verdict.tests, "error", "timeout", "skipped") or verdict.reward is None:
        return "tests_error", f"On the untouched environment a test must pass or fail by assertion.\n{report(verdict)}"
    if not verdict.tests:
        return "no_tests", f"No test was collected.\n{report(verdict)}"
    if not named(verdict.tests, "failed"):
        return "passes_at_start", "All tests pass on the untouched environment: they do not test the task's outcome."
    return "", ""


def _disagreement(judgement: Judgement) -> str:
    unstated = [f"Tested, but neither stated nor to be found in the environment: {fact}" for fact in judgement.unstated]
    untested = [f"Asked for, but not tested: {requirement}" for requirement in judgement.untested]
    return "\n".join(unstated + untested)


STAGE = Stage(
    name="examine",
    subscribes="furnished",
    takes=Furnished,
    publishes={Examined: "examined"},
    handler=examine,
    slots=16,
    limits=("chat", "build", "grade"),
)
