"""certify: everything that makes a task trustworthy is shown by running it, then written down.

The reference must pass every one of k runs: solving attempts that were exactly the reference, each in its own fresh
sandbox, count; what is missing is run here, and one run always is the solution script under the task's own test.sh.
A cheater whose episode was not its own to end has shown nothing.
"""

from __future__ import annotations

import anyio

from generators.assemble import assemble
from generators.band import passes
from generators.certificate import BandRecord, Checks, commands_digest, issue
from generators.context import GenerationContext
from generators.handling import UnfitError, handles
from generators.messages import Certified, Solved
from generators.proof import NoOp, Prover, explain
from generators.roles import Played
from generators.stages.solve import succeeded
from runtime.agent.episode import GRADABLE
from runtime.stage import Message, RetryLater, Stage
from sandbox.engine import Sandbox
from sandbox.spec import FailureClass, Verdict


@handles("certify")
async def certify(message: Solved, context: GenerationContext) -> Message:
    examined, players = message.examined, context.players
    blueprint, draft = examined.blueprint, examined.draft
    bench = context.bench(message.item, examined.environment)
    task = assemble(message, seed=context.seed)
    prover = Prover(bench, await bench.image(), task, command_timeout_s=context.settings.command_timeout_s)
    counted = _counted_runs(message)
    missing = max(0, context.settings.certificate_repeats - 1 - counted)

    async def cheat(sandbox: Sandbox) -> Played:
        played = await players.cast.cheater.cheat(blueprint, draft, sandbox)
        _refuse_unplayed(message.item, played)
        return played

    (no_op, (cheated, cheater_reward), script, another_day), runs = await anyio.gather(
        anyio.gather(
            prover.no_op(draft.truth.strings),
            prover.cheat(cheat),
            prover.script(),
            prover.another_day(message.reference.commands),
        ),
        anyio.amap(prover.reference, [message.reference.commands] * missing),
    )
    _refuse_start(no_op, examined.failing)
    _refuse_reference(runs, script, another_day, counted=counted)
    if cheater_reward >= 1.0:
        raise UnfitError("cheatable", "a cheater passed without doing the task")
    checks = Checks(
        failing_at_start=no_op.failing,
        reference_runs=counted + 1 + missing,
        reference_passed=counted + 1 + missing,
        solution_script_passed=True,
        no_op_reward=no_op.reward,
        cheater_reward=cheater_reward,
        cheater_commands=len(cheated.commands),
        cheater_digest=commands_digest(cheated.commands),
        moved_clock_passed=True,
        truth=draft.truth.strings,
    )
    certificate = issue(
        task,
        blueprint=blueprint,
        seed=context.seed,
        checks=checks,
        attempts=message.attempts,
        players=players.name,
        prompts=players.prompts,
        band=_band(message, players.measured_name),
    )
    await context.images.release(context.engine, message.item)
    return Certified(item=message.item, run_id=message.run_id, solved=message, certificate=certificate.encode())


def _band(message: Solved, policy: str) -> BandRecord | None:
    graded = [attempt for attempt in message.measured if attempt.reward is not None]
    return BandRecord(policy=policy, attempts=len(graded), passed=passes(graded)) if graded else None


def _counted_runs(message: Solved) -> int:
    """Solving attempts that were runs of the reference. Raises: UnfitError when one of them failed."""
    same = [a for a in message.attempts if a.commands == message.reference.commands and a.reward is not None]
    if failed := [attempt.index for attempt in same if not succeeded(attempt)]:
        raise UnfitError("flaky", f"the reference failed in attempt {failed[0]} and passed in others")
    return len(same)


def _refuse_unplayed(item: str, cheated: Played) -> None:
    """Raises: RetryLater, and UnfitError where the endpoint's filter, which has not changed by then, stopped it."""
    if cheated.failure == FailureClass.LLM_FILTERED:
        raise UnfitError("llm_filtered", "the endpoint's filter ended the cheater's episode")
    if cheated.failure not in GRADABLE:
        raise RetryLater(f"{item}: the cheater could not act to its end: {cheated.failure}")


def _refuse_start(no_op: NoOp, failing: tuple[str, ...]) -> None:
    """Raises: UnfitError when doing nothing shows too much, passes, or fails otherwise than before."""
    if no_op.leaks:
        raise UnfitError("truth_leak", f"the built image shows the answer in {', '.join(no_op.leaks[:5])}")
    if no_op.reward >= 1.0:
        raise UnfitError("passes_at_start", "doing nothing passes")
    if no_op.failing != failing:
        raise UnfitError("flaky", f"at first {', '.join(failing)} failed, then {', '.join(no_op.failing)}")


def _refuse_reference(runs: list[Verdict], script: Verdict, another_day: Verdict, *, counted: int) -> None:
    """Raises: UnfitError when the reference does not pass every time, in every form and on every day."""
    if failed := [run for run in runs if not run.passed]:
        reason = "flaky" if counted or len(failed) < len(runs) else "reference_fails"
        raise UnfitError(reason, f"{len(failed)} of {len(runs)} runs failed: {explain(failed[0])}")
    if not script.passed:
        raise UnfitError("solution_script", explain(script))
    if not another_day.passed:
        raise UnfitError("time_dependent", f"passes today, and not a year ahead: {explain(another_day)}")


STAGE = Stage(
    name="certify",
    subscribes="solved",
    takes=Solved,
    publishes={Certified: "certified"},
    handler=certify,
    slots=16,
    limits=("chat", "build", "create", "run", "grade"),
)
