"""furnish: the environment is written, built and tested for real.

A round ends when, on a built environment, a service does not come up or the initial tests fail; within a round, builds
that fail are mended. Both bounds are the settings'. Each failure is told whole: step, exit code and the tail of the
log, what the service said, or the tests' report.
"""

from __future__ import annotations

from generators.context import GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Draft, Environment, Furnished, Reviewed
from generators.suites import initial_suite, report
from generators.truth import shipped_truth
from runtime.stage import Message, Stage
from sandbox.errors import ServiceUnhealthy
from sandbox.spec import BuildResult


@handles("furnish")
async def furnish(message: Reviewed, context: GenerationContext) -> Message:
    settings, feedback = context.settings, list[str]()
    rounds = builds = 0
    reason = "build_failed"
    while builds < settings.builds and rounds < settings.furnish_rounds:
        builds += 1
        environment = await context.players.cast.furnisher.furnish(message.blueprint, message.draft, feedback=feedback)
        reason, problem = await _objection(message.draft, environment, message.item, context)
        if not reason:
            return Furnished(
                item=message.item,
                run_id=message.run_id,
                blueprint=message.blueprint,
                draft=message.draft,
                environment=environment,
            )
        rounds += reason != "build_failed"
        feedback.append(problem)
    raise UnfitError(reason, feedback[-1])


async def _objection(draft: Draft, environment: Environment, item: str, context: GenerationContext) -> tuple[str, str]:
    """Build and test; a reason class and what the furnisher is told, both empty when all is well."""
    if shipped := shipped_truth(draft, environment):
        return "truth_leak", f"The build context gives the answer away: {', '.join(map(repr, shipped))}."
    bench = context.bench(item, environment)
    built = await bench.build()
    if not built.ok:
        return "build_failed", _told(built)
    if environment.services:
        try:
            async with bench.sandbox(built.image, "services"):
                pass
        except ServiceUnhealthy as unhealthy:
            return "service_unhealthy", unhealthy.report
    verdict = await bench.grade(built.image, initial_suite(environment.initial_tests), "initial")
    return ("", "") if verdict.passed else ("initial_tests_failed", report(verdict))


def _told(built: BuildResult) -> str:
    return (
        f"The build failed at `{built.failed_step}` with exit code {built.exit_code}. The log ends:\n{built.log_tail}"
    )


STAGE = Stage(
    name="furnish",
    subscribes="reviewed",
    takes=Reviewed,
    publishes={Furnished: "furnished"},
    handler=furnish,
    slots=16,
    limits=("chat", "build", "create", "run", "grade"),
)
