"""What the commands print: results for people on standard output, progress on standard error, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.errors import UserError

if TYPE_CHECKING:
    from trainer.estimate import Card
    from trainer.evaluate import Evaluation
    from trainer.recipe import Recipe


def show_evaluation(got: Evaluation, report: Path, *, as_json: bool) -> int:
    """The rates; returns the exit code, 1 when a task has no graded attempt."""
    import msgspec

    from trainer.evaluate import missing, rate

    apart, rates = missing(got), [rate(got.tasks, k, seed=got.seed) for k in sorted({1, got.attempts})]
    if as_json:
        found = {"rates": rates, "missing": apart, "analysis": got.analysis}
        write_json({"kind": "result", **msgspec.to_builtins(found), "report": str(report)})
    else:
        for one in rates:
            write(f"pass@{one.k}: {one.shown()} over {one.tasks} tasks")
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(apart.items()))
        write(f"without a verdict, in no rate: {reasons or 'none'}")
        write(_failures(got))
        write(f"report: {report}")
    return 1 if any(not task.graded for task in got.tasks) else 0


def show_trained(out: Path, report: Path, *, as_json: bool) -> int:
    """Where everything is; returns the exit code."""
    if as_json:
        write_json({"kind": "result", "out": str(out), "report": str(report), "policy": str(out / "policy")})
    else:
        say(f"the policy is in {out / 'policy'}, the report in {report}")
    return 0


def show_estimate(recipe: Recipe, path: Path, model: Path | None, tasks: int, *, as_json: bool) -> int:
    """What a dry run shows. Raises: UserError when the model's dimensions are unknown."""
    import msgspec

    from trainer.estimate import estimate, placement, serve_command, shape_of, train_command

    shape = recipe.model.shape or (shape_of(model) if model else None)
    if shape is None:
        raise UserError("model.shape", "is not in the recipe, and no model is given", "Give --model")
    got = estimate(recipe, shape)
    serve = serve_command(recipe, str(model or "MODEL"))
    if as_json:
        commands = {"serve": serve, "train": train_command(str(path), got)}
        write_json(
            {"kind": "result", "recipe": msgspec.to_builtins(recipe), "estimate": msgspec.to_builtins(got) | commands}
        )
        return 0
    for key, value in _leaves(msgspec.to_builtins(recipe)):
        write(f"{key} = {json.dumps(value)}")
    write(f"\n{recipe.model.name}: {got.parameters / 1e9:.2f} billion parameters")
    if recipe.lora is not None:
        write(f"trained: {got.trained_parameters / 1e6:.1f} million in adapters")
    for title, parts in (("learner", got.learner), ("each engine", got.engine)):
        write(f"memory of {title}:")
        for part in parts:
            write(f"  {part.gib:9.1f} GiB  {part.name}{'' if part.divided else ' (on each device)'}")
    without, again = got.activations_gib
    write(f"activations: {without:.1f} GiB without gradient checkpointing, {again:.1f} GiB with it")
    write(
        f"an update: {got.episodes_per_update} episodes, at most {got.tokens_per_update:,} tokens and"
        f" {got.flops_per_update / 1e15:,.4g} petaflop in the learner"
    )
    if tasks:
        write(f"a pass over {tasks} tasks: at most {tasks * got.tokens_per_task_pass:,} tokens")
    for card in got.cards:
        write(
            f"devices of {card.gpu_memory_gb:g} GB: {card.learner_gpus or 'no number is enough'} for the learner,"
            f" {got.engine_gpus} for the engines{_by_recipe(card, recipe)}"
        )
    for line in placement(recipe, got):
        write(line)
    write(f"start the learner: {train_command(str(path), got)}")
    if recipe.serve.engine == "sglang" and got.engine_gpus:
        write(f"start {recipe.serve.engines} of: {serve}")
    return 0


def _by_recipe(card: Card, recipe: Recipe) -> str:
    if card.gpu_memory_gb != recipe.hardware.gpu_memory_gb:
        return ""
    return f"; the recipe names {recipe.hardware.gpus}"


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def step_line(line: Mapping[str, Any]) -> str:
    """A training step for people."""
    held_out = f", held out {line['held_out_pass_rate']:.1%}" if "held_out_pass_rate" in line else ""
    return (
        f"step {line['step']}: reward {line['reward']:.3f}{held_out}, entropy {line.get('entropy', 0.0):.2f},"
        f" staleness {line['staleness_mean']:.2f}, {line['tokens_per_s']:.0f} tokens/s, waited {line['wait_s']:.1f} s"
    )


def tell_step(line: Mapping[str, Any]) -> None:
    say(step_line(line))


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def write_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _failures(got: Evaluation) -> str:
    """How episodes failed, and how many got over an error, in one line."""
    found = got.analysis
    shares = {"loop": found.loops, "turns exhausted": found.exhausted, "early wrong stop": found.wrong_stops}
    told = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share is not None)
    errors = found.recovery.get("any")
    recovered = f"{errors.recovered} of {errors.episodes}" if errors else "none of 0"
    failed = f"failed: {found.episodes - found.passed} of {found.episodes}"
    return f"{failed} ({told or 'nothing to tell'}); recovered from an error: {recovered}"
