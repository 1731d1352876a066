"""An agent that speaks as Terminus-2 does, the baseline agent of Harbor: keystrokes into a terminal, as JSON.

    {"analysis": "", "plan": "", "commands": [{"keystrokes": "ls -la\\n", "duration": 0.1}], "task_complete": false}

Compatible are: the answer format and how tolerantly it is read, keystrokes with tmux's names for keys, waiting for each
`duration`, several commands an answer, the opening message with the terminal's state, the correction of an answer that
cannot be read, and that completion is asked for twice. Different are: what is shown is the text that was printed, not
the cells of a tmux pane; its limit is `observation_tokens`; there is no summariser.

Invariants:
- Keystrokes are typed to the letter, and in order; those of an answer that claims completion too.
- Completion takes two answers in a row that claim it.
- No wait is longer than 60 s, nor than what is left on the episode's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from pydantic import BaseModel, Field, ValidationError

from runtime.agent.kind import Acted, CountTokens, Opening
from runtime.agent.minimal import LIBRARY, version_of
from runtime.agent.observation import fit
from runtime.agent.parser import Action, Command, Malformed
from runtime.agent.settings import AgentSettings
from runtime.agent.terminal import Terminal
from runtime.chat.messages import ChatMessage
from runtime.chat.parse import extract_json, split_reasoning
from runtime.errors import AnswerUnusable
from runtime.trajectory import Turn
from sandbox.engine import Session

LONGEST_WAIT_S = 60.0
_LAST_WAIT_S = 0.1
"""After the last key of an answer, as in Terminus-2: what a command without a duration prints is mostly there."""
_KEYS = {
    "Enter": b"\r",
    "Tab": b"\t",
    "Escape": b"\x1b",
    "Space": b" ",
    "BSpace": b"\x7f",
    "Up": b"\x1b[A",
    "Down": b"\x1b[B",
    "Right": b"\x1b[C",
    "Left": b"\x1b[D",
    **{f"C-{chr(96 + code)}": bytes([code]) for code in range(1, 27)},
    "C-\\": b"\x1c",
}
"""tmux's names of keys, each alone in its `keystrokes`."""


class Keystrokes(BaseModel):
    """One entry of `commands`."""

    keystrokes: str
    duration: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    @property
    def keys(self) -> bytes:
        return _KEYS.get(self.keystrokes) or self.keystrokes.encode("utf-8", "replace")

    @property
    def text(self) -> str:
        """What was typed as text; nothing for a key that has a name."""
        return "" if self.keystrokes in _KEYS else self.keystrokes


class Answer(BaseModel):
    """The whole answer. Other fields are ignored."""

    analysis: str
    plan: str
    commands: list[Keystrokes]
    task_complete: bool = False


@dataclass(frozen=True)
class Typed(Command):
    """Keystrokes; `command` is the text among them."""

    keys: tuple[Keystrokes, ...] = ()
    complete: bool = False


class TerminusAgent:
    """See `runtime.agent.kind.Agent`."""

    def __init__(self, settings: AgentSettings, session: Session, count_tokens: CountTokens) -> None:
        self._settings, self._session, self._count_tokens = settings, session, count_tokens
        self._terminal: Terminal | None = None
        self._claimed = False
        """The last answer claimed completion."""

    async def open(self, instruction: str) -> Opening:
        self._terminal = await Terminal.open(self._session)
        screen = await self._terminal.look()
        prompt = LIBRARY.render("terminus", instruction=instruction, screen=screen.output)
        return Opening(messages=(ChatMessage(role="user", content=prompt.text),), prompt_version=version_of(prompt))

    def read(self, text: str) -> Action:
        return read_answer(text)

    def correct(self, malformed: Malformed, *, truncated_at: int | None) -> str:
        self._claimed = False
        cut = f"\nWARNINGS: the answer reached the limit of {truncated_at} tokens" if truncated_at else ""
        return (
            f"Previous response had parsing errors:\nERROR: {malformed.detail}{cut}\n\n"
            "Please fix these issues and provide a proper JSON response."
        )

    async def act(self, command: Command, *, left_s: float) -> Acted:
        assert isinstance(command, Typed)
        assert self._terminal is not None
        spent_s = 0.0
        for number, entry in enumerate(command.keys, start=1):
            least_s = _LAST_WAIT_S if number == len(command.keys) else 0.0
            wait_s = max(0.0, min(max(entry.duration, least_s), LONGEST_WAIT_S, left_s - spent_s))
            spent_s += await self._terminal.type(entry.keys, wait_s=wait_s)
        printed = await self._terminal.look()
        result = replace(printed, duration_s=printed.duration_s + spent_s)
        shown, _ = fit(printed.output, self._settings.observation_tokens, self._count_tokens)
        seen = f"New Terminal Output:\n\n{shown}"
        confirmed = command.complete and self._claimed
        if command.complete and not confirmed:
            seen = LIBRARY.render("confirm", screen=seen).text
        self._claimed = command.complete
        return Acted(result=result, observation=seen, done=confirmed)

    async def renew(self, opening: Opening, turns: Sequence[Turn]) -> tuple[ChatMessage, ...]:
        return ()


def read_answer(text: str) -> Action:
    """Read one answer; prose and reasoning around the JSON do not count."""
    _, reasoning = split_reasoning(text)
    try:
        answer = Answer.model_validate(extract_json(text))
    except AnswerUnusable as error:
        return Malformed("json", reasoning, "; ".join(error.problems))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['msg']}" for e in error.errors()]
        return Malformed("json", reasoning, "; ".join(problems))
    thought = "\n".join(part for part in (reasoning, answer.analysis.strip(), answer.plan.strip()) if part)
    typed = "".join(entry.text for entry in answer.commands).strip("\n")
    if "\0" in typed:
        return Malformed("nul_byte", thought, "keystrokes hold a NUL byte")
    return Typed(typed, thought, tuple(answer.commands), answer.task_complete)
