"""Players that need no model: they know the way (`generators.synthesis.script`) and the typical mistakes on it.

Where the episode stands is read from its turns: a correct turn took the next move of the way, a mistake put its repair
and the same move again before the rest. The generator speaks of what it sees (exit code, that nothing complained) and
never of what was planned.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from generators.messages import ErrorType, Mistake
from generators.synthesis.roles import Cast, Scene, Step
from generators.synthesis.script import Move, Script, script_of
from generators.synthesis.slips import slips
from runtime.task import Task
from runtime.trajectory import CriticVerdict, Turn
from sandbox.engine import Sandbox

_FINISHED = (
    "Every part of the request is done.",
    "That was the last part; everything that was asked for is in place.",
    "Nothing of the request is left to do.",
)
_COMPLAINED = ("That ended with exit code {}.", "Exit code {}: that did not work.", "It failed with exit code {}.")
_STOPPED = ("That did not end by itself and was stopped.", "It ran into the time limit.")
_SILENT = (
    "Nothing complained, but that is not what I wanted.",
    "It ran through, and still the result is not what was asked for.",
    "Looking at what that did, it is not right.",
)
_CAUSES: dict[str, tuple[str, ...]] = {
    "analysis_error": ("I misunderstood what this part needs.", "I had the wrong idea of what is there."),
    "command_error": ("The command itself was wrong.", "I wrote the command wrongly."),
    "hallucination": ("I relied on something that does not exist here.", "I assumed something that is not so."),
    "requirement_violation": ("The request says it differently.", "I did not keep to what the request says."),
    "verification_failure": ("I should have looked before going on.", "I took it for done without checking."),
}
_AGAIN = ("Now properly:", "So once more, as it should be:", "The right way:")
_UNDO = ("First I undo what that left behind.", "What it left has to go first.", "I clean up before I go on.")
_REST = "That is still left over from the mistake, so it goes as well."


class ProceduralTroupe:
    """Casts players that know the task's script."""

    name = "procedural"
    prompts: dict[str, str] = {}  # noqa: RUF012  (there are none)

    async def cast(self, task: Task, sandbox: Sandbox) -> Cast:
        script = await script_of(task, sandbox)
        return Cast(
            generator=ProceduralGenerator(script),
            mistake_maker=ProceduralMistakeMaker(script),
            critic=ProceduralCritic(script),
        )


class ProceduralGenerator:
    """Follows the way; after a mistake it says what it sees, repairs, and goes on."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def step(self, scene: Scene, *, drafts: Sequence[CriticVerdict]) -> Step:
        rng = random.Random(f"{scene.key}/thought")
        ahead = moves_ahead(self._script, scene.turns)
        if not ahead:
            return Step(thought=rng.choice(_FINISHED), command="", done=True)
        move = ahead[0]
        if not scene.turns or scene.turns[-1].intent != "error":
            return Step(thought=move.thought, command=move.command)
        words = rng.choice(_UNDO) if move.step is None else f"{rng.choice(_AGAIN)} {move.thought}"
        return Step(thought=f"{_diagnosis(scene.turns[-1], rng)} {words}", command=move.command)


class ProceduralMistakeMaker:
    """Makes the task's own mistakes and, for the types without one, the slips that any command allows."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def possible(self, scene: Scene) -> Sequence[ErrorType]:
        return sorted({mistake.error_type for mistake in self._left(scene)})

    async def mistake(self, scene: Scene, error_type: ErrorType, *, drafts: Sequence[CriticVerdict]) -> Step:
        fitting = [mistake for mistake in self._left(scene) if mistake.error_type == error_type]
        chosen = random.Random(f"{scene.key}/mistake").choice(fitting)
        return Step(thought=chosen.reason, command=chosen.command)

    def _left(self, scene: Scene) -> list[Mistake]:
        """What can go wrong here and was not tried yet; nothing is got wrong twice in the same way."""
        ahead = moves_ahead(self._script, scene.turns)
        done = {*scene.tried, *(turn.command for turn in scene.turns if turn.intent == "error")}
        return (
            [mistake for mistake in _mistakes(self._script, ahead[0]) if mistake.command not in done] if ahead else []
        )


class ProceduralCritic:
    """A mistake must not be the right step; everything else holds by construction."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def judge(self, scene: Scene, step: Step, error_type: ErrorType | None, *, draft: int) -> CriticVerdict:
        ahead = moves_ahead(self._script, scene.turns)
        if error_type is not None and ahead and step.command == ahead[0].command:
            return CriticVerdict(accepted=False, critique="This is the right step.", rejected_command=step.command)
        return CriticVerdict(accepted=True)


def moves_ahead(script: Script, turns: Sequence[Turn]) -> list[Move]:
    """What is left to do after these turns."""
    ahead = list(script.moves)
    for turn in turns:
        if turn.intent == "error":
            mistake = next(m for m in _mistakes(script, ahead[0]) if m.command == turn.command)
            ahead[:0] = [Move(command=command, thought=_REST) for command in mistake.repair]
        else:
            del ahead[0]
    return ahead


def _mistakes(script: Script, move: Move) -> list[Mistake]:
    """The task's own mistakes at this move, and slips of the types that these leave open."""
    own = [mistake for mistake in script.mistakes if mistake.step == move.step]
    types = {mistake.error_type for mistake in own}
    return own + [slip for slip in slips(move.command) if slip.error_type not in types]


def _diagnosis(turn: Turn, rng: random.Random) -> str:
    """What is to be seen of the last turn, and what it means."""
    if turn.exit_code == 0:
        seen = rng.choice(_SILENT)
    else:
        seen = rng.choice(_STOPPED) if turn.exit_code is None else rng.choice(_COMPLAINED).format(turn.exit_code)
    return f"{seen} {rng.choice(_CAUSES[turn.error_type])}"
