"""Training, rollouts and evaluations as jobs of the daemon: the same runs that the commands carry out by themselves.

Each in a process of its own (`apart`): torch takes the processor for seconds at a time, may run out of memory, and a
learner that hangs ends with its process alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from runtime.daemon.kind import JobKind, JobPlace, JobWork
from runtime.errors import UserError
from runtime.events import Kind, RunEvent
from runtime.settings import Settings
from trainer.arena import find_tasks
from trainer.asked import (
    Command,
    claim,
    key_of,
    play_asked,
    require_absolute,
    require_directory,
    require_limits,
    require_policy,
    run_id,
    train_asked,
)
from trainer.rollout import STAGE
from trainer.screen import step_line

EVALUATE = replace(STAGE, name="evaluate", subscribes="evaluations")
"""How a training job shows its measurements."""
Options = Mapping[str, Any]


def _check_train(settings: Settings, options: Options) -> None:
    asked = train_asked(options)
    require_absolute("out", asked.out)
    require_absolute("model", asked.model)
    require_absolute("tasks", *asked.tasks, *asked.held_out, *asked.demonstrations)
    find_tasks(map(Path, asked.tasks))
    find_tasks(map(Path, asked.held_out))
    claim(Path(asked.out), resume=asked.resume)


def _place_train(settings: Settings, options: Options) -> JobPlace:
    """The run has its metrics and checkpoints in its own directory, and no store."""
    out = Path(train_asked(options).out)
    return JobPlace(
        run_id=run_id("train", out), store=out / "store.sqlite", out=out, notes=_notes(settings, "train", out)
    )


def _notes(settings: Settings, command: str, out: Path) -> Path:
    """Apart from the run's directory, where `metrics.jsonl` is the run's own."""
    return settings.paths.state / command / key_of(out)


async def _train(work: JobWork) -> dict[str, Any]:
    from trainer.runs import carry_out_training

    asked = train_asked(work.options)
    run = run_id("train", Path(asked.out))
    draining = _Draining()
    work.announce(draining)

    def said(detail: str) -> None:
        work.on_event(RunEvent(kind=Kind.SAID, run=run, at=time.time(), detail=detail))

    def stepped(line: dict[str, float]) -> None:
        finite = {name: float(value) for name, value in line.items() if math.isfinite(value)}  # JSON knows no other
        work.on_event(RunEvent(kind=Kind.STEP, run=run, at=time.time(), detail=step_line(line), numbers=finite))

    def happened(event: RunEvent) -> None:
        measured = event.run != run
        work.on_event(msgspec.structs.replace(event, stage=EVALUATE.name) if measured else event)

    report = await carry_out_training(
        asked,
        engine=work.engine,
        limits=work.limits,
        say=said,
        on_step=stepped,
        on_drain=draining.on_drain,
        on_event=happened,
    )
    if report is None:
        return {"state": "drained", "reason": draining.reason, "out": asked.out}
    return {"state": "finished", "out": asked.out, "report": str(report), "policy": str(Path(asked.out) / "policy")}


class _Draining:
    """What a training run is drained by: its loop is there only while it runs."""

    def __init__(self) -> None:
        self.reason = ""
        self._act: Callable[[], None] = lambda: None

    def on_drain(self, act: Callable[[], None]) -> None:
        self._act = act
        if self.reason:
            act()

    def drain(self, reason: str = "asked to") -> None:
        self.reason = reason
        self._act()


def _check_play(command: Command, settings: Settings, options: Options) -> None:
    asked = play_asked(options)
    if asked.command != command:
        raise UserError("command", f"is '{asked.command}' in a job of kind '{command}'", "Submit it as what it is")
    require_absolute("out", asked.out)
    require_absolute("tasks", *asked.tasks)
    require_absolute("policy", asked.policy)
    require_directory(Path(asked.out))
    require_limits(asked.limits)
    find_tasks(map(Path, asked.tasks))
    if asked.attempts < 1:
        raise UserError("attempts", f"{asked.attempts} is refused", "It must be at least 1")
    if asked.recipe is not None:
        require_policy(asked)
    else:
        from runtime.chat.endpoint import require_endpoint

        require_endpoint(settings.chat, otherwise="evaluate a policy with --policy and --recipe")


def _place_play(settings: Settings, options: Options) -> JobPlace:
    asked = play_asked(options)
    out = Path(asked.out)
    notes = _notes(settings, asked.command, out)
    return JobPlace(run_id=run_id(asked.command, out), store=out / "store.sqlite", out=out, notes=notes)


async def _play(work: JobWork) -> dict[str, Any]:
    from trainer.evaluate import missing, rate
    from trainer.report import write_report
    from trainer.runs import carry_out_play

    asked = play_asked(work.options)
    got = await carry_out_play(
        asked,
        work.settings,
        engine=work.engine,
        limits=work.limits,
        on_event=work.on_event,
        announce=work.announce,
    )
    if got is None:
        return {"state": "drained", "reason": "stopped before its end"}
    report = await to_thread.run_sync(write_report, Path(asked.out))
    rates = [rate(got.tasks, k, seed=got.seed) for k in sorted({1, got.attempts})]
    return {
        "state": "finished",
        "out": asked.out,
        "report": str(report),
        "rates": msgspec.to_builtins(rates),
        "missing": dict(missing(got)),
    }


def _play_kind(command: Command) -> JobKind:
    return JobKind(
        name=command,
        stages=(STAGE,),
        check=partial(_check_play, command),
        place=_place_play,
        run=_play,
        apart=True,
    )


TRAIN = JobKind(name="train", stages=(STAGE, EVALUATE), check=_check_train, place=_place_train, run=_train, apart=True)
ROLL_OUT = _play_kind("rollout")
MEASURE = _play_kind("evaluate")
