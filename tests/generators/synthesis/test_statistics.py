"""Statistics: counted once, recovered only when all tests passed."""

from __future__ import annotations

from generators.synthesis.statistics import Errors, statistics_of
from runtime.trajectory import CriticVerdict
from sandbox.spec import FailureClass
from tests.generators.synthesis.parts import trajectory, turn


def test_mistakes_by_type_with_the_share_that_was_recovered() -> None:
    planted = {"intent": "error", "error_type": "command_error", "effect": "exit_code", "exit_code": 127}
    sent_back = (CriticVerdict(accepted=False, critique="no"), CriticVerdict(accepted=True))
    cut = {"passed": 1, "failure": FailureClass.TURN_LIMIT}
    statistics = statistics_of(
        [
            trajectory("a", turn(1, "x", **planted), turn(2, "y", discarded=2), turn(3, "z", exit_code=1)),
            trajectory("b", turn(1, "x", **planted), turn(2, "y", critic=sent_back), **cut),
            trajectory("c", turn(1, "", action="done", exit_code=None, observation=None), passed=0),
        ]
    )
    assert statistics.injected["command_error"] == Errors(made=2, recovered=1, recovery_rate=0.5)
    assert statistics.injected["hallucination"] == Errors()
    assert statistics.natural == Errors(made=1, recovered=1, recovery_rate=1.0)
    assert (statistics.trajectories, statistics.verified, statistics.turns) == (3, 1, 6)
    assert (statistics.share_verified, statistics.mean_share_passed) == (0.3333, 0.5)
    assert (statistics.discarded, statistics.critic_rejections) == (2, 1)
    assert statistics.effects == {"exit_code": 2}
    assert statistics.endings == {"ok": 2, "turn_limit": 1}
    assert 3 * 5 < statistics.tokens < 200


def test_of_nothing_there_is_nothing_to_say() -> None:
    statistics = statistics_of([])
    assert (statistics.trajectories, statistics.share_verified, statistics.mean_turns) == (0, 0, 0)
