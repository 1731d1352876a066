"""An endpoint that misbehaves in every way it can, and a run that is killed: nothing is lost, nothing is paid twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.endpoint import prove
from generators.chat.played import PlayedModel
from runtime.chat.script import Reply
from tests.machine import base_environment, need_namespaces

REASONS = {"answer_unusable", "review", "unsolved", "unstated", "untested"}
"""What may be wrong with a task of this model, or with what became of its answers on the way."""


@pytest.mark.namespace
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "kill_at"),
    [(3, 25), pytest.param(200, 2400, marks=[pytest.mark.sweep, pytest.mark.timeout(0)])],
)
async def test_every_item_ends_once_and_nothing_recorded_is_paid_again(
    tmp_path: Path, tasks: int, kill_at: int
) -> None:
    need_namespaces()
    base_environment()
    proof = await prove(tmp_path, tasks=tasks, kill_at=kill_at, seed=3)
    assert proof.admitted == proof.ended == tasks
    assert proof.published + proof.screened + sum(proof.rejected.values()) == tasks
    assert {reason.partition(": ")[2] for reason in proof.rejected} <= REASONS
    assert proof.published > 0
    assert proof.in_flight_at_kill > 0
    assert proof.recorded_at_kill > 0
    assert proof.asked_again == 0
    assert set(proof.paid_twice) <= set(proof.lost_at_kill)
    assert proof.paid - proof.unrecorded == proof.ledger


def test_a_played_model_answers_for_its_own_tasks_alone() -> None:
    request = {"messages": [{"role": "user", "content": "Prepare the surroundings of this task: none."}]}
    assert not isinstance(PlayedModel()(request, 1), Reply)
