"""What a team's followers do: what the leader tells them, until it leaves.

A follower knows no recipe, task or model directory; whatever it needs comes from the leader. An error that the leader
has in the same place is the leader's to report.
"""

from __future__ import annotations

import signal
from typing import Any

from torch import nn

from trainer.checkpoint import CheckpointInvalid, restore, save_state
from trainer.parallel import Ranks, open_team
from trainer.ppo import Learner, TrainingDiverged
from trainer.sft import fine_tune


def follow() -> int:
    """Follow the leader. Returns: the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader ends what is in work, and says when it leaves
    with open_team() as team:
        assert isinstance(team, Ranks)
        learner: Learner | None = None
        while (told := team.hear())[0] != "leave":
            try:
                learner = _do(team, learner, *told)
            except (TrainingDiverged, CheckpointInvalid, OSError):
                continue
    return 0


def _do(team: Ranks, learner: Learner | None, name: str, arguments: dict[str, Any]) -> Learner | None:
    """Carry out one command. Returns: the learner from now on."""
    if name == "learn":
        critic: Any = nn.Module() if arguments["critic"] else None
        return Learner(nn.Module(), critic, arguments["config"], seed=arguments["seed"], team=team)
    if name == "fine_tune":
        fine_tune(nn.Module(), team=team, **arguments)
        return None
    assert learner is not None, f"told to {name} before there is a learner"
    match name:
        case "update":
            learner.update(**arguments)
        case "save":
            save_state(learner, **arguments)
        case "restore":
            restore(learner, **arguments)
    return learner
