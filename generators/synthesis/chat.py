"""Chat players of synthesis: one prompt and one JSON answer for each draft and each verdict.

Invariants:
- A thought is part of the answer's JSON; a model's own reasoning, which may speak of the intent, is dropped.
- The nonce of a call names item, turn, draw and draft, so a repeated episode that comes the same way pays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from generators.messages import ErrorType
from generators.roles import RoleFailed
from generators.synthesis.roles import Cast, Scene, Step
from runtime.chat.messages import ChatMessage, ChatRequest, Completer
from runtime.chat.parse import ask_structured
from runtime.chat.prompts import PromptLibrary
from runtime.errors import AnswerUnusable
from runtime.task import Task
from runtime.trajectory import CriticVerdict
from sandbox.engine import Sandbox

PROMPTS = ("step", "mistake", "critic")

_MAX_TOKENS = 2048
"""The papers' limit for one turn of an agent."""
_WRITING, _JUDGING = 1.0, 0.2
"""Temperatures: steps should differ between repeats, verdicts should not."""

_library = PromptLibrary("generators.synthesis")

Schema = TypeVar("Schema", bound=BaseModel)


class _Answer(BaseModel):
    """What a model adds beside the fields asked for is dropped."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _command(text: str) -> str:
    if "\0" in text:
        raise ValueError("write the command without NUL bytes")
    return text.strip("\r\n")


Thought = Annotated[str, Field(min_length=1, max_length=8000), AfterValidator(str.strip)]
CommandText = Annotated[str, AfterValidator(_command)]


class StepAnswer(_Answer):
    thought: Thought
    command: CommandText = ""
    done: bool = False

    @model_validator(mode="after")
    def _acts(self) -> StepAnswer:
        if self.done == bool(self.command.strip()):
            raise ValueError("give either a command, or done = true with an empty command")
        return self


class MistakeAnswer(_Answer):
    thought: Thought
    command: Annotated[CommandText, Field(min_length=1)]


class CriticAnswer(_Answer):
    accepted: bool
    critique: str = ""

    @model_validator(mode="after")
    def _explains(self) -> CriticAnswer:
        if not self.accepted and not self.critique.strip():
            raise ValueError("say in critique what has to change")
        return self


class ChatTroupe:
    """All roles on one endpoint."""

    def __init__(self, client: Completer, model: str) -> None:
        self.name = f"chat:{model}"
        self.prompts = {name: _library.version(name) for name in PROMPTS}
        self._players = ChatPlayers(client)

    async def cast(self, task: Task, sandbox: Sandbox) -> Cast:
        return Cast(generator=self._players, mistake_maker=self._players, critic=self._players)


class ChatPlayers:
    """Plays the three roles. They share nothing but the endpoint."""

    def __init__(self, client: Completer) -> None:
        self._client = client

    async def step(self, scene: Scene, *, drafts: Sequence[CriticVerdict]) -> Step:
        last = scene.turns[-1] if scene.turns else None
        wrong = last is not None and (last.intent == "error" or last.exit_code != 0)
        answer = await self._ask("step", StepAnswer, scene, len(drafts), drafts=drafts, after_mistake=wrong)
        return Step(thought=answer.thought, command=answer.command, done=answer.done)

    def possible(self, scene: Scene) -> Sequence[ErrorType]:
        return get_args(ErrorType)

    async def mistake(self, scene: Scene, error_type: ErrorType, *, drafts: Sequence[CriticVerdict]) -> Step:
        answer = await self._ask("mistake", MistakeAnswer, scene, len(drafts), drafts=drafts, error_type=error_type)
        return Step(thought=answer.thought, command=answer.command)

    async def judge(self, scene: Scene, step: Step, error_type: ErrorType | None, *, draft: int) -> CriticVerdict:
        answer = await self._ask("critic", CriticAnswer, scene, draft, step=step, error_type=error_type)
        if answer.accepted:
            return CriticVerdict(accepted=True, critique=answer.critique)
        return CriticVerdict(accepted=False, critique=answer.critique, rejected_command=step.command)

    async def _ask(self, role: str, schema: type[Schema], scene: Scene, draft: int, **values: object) -> Schema:
        prompt = _library.render(role, scene=scene, **values)
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=prompt.text),),
            purpose=role,
            temperature=_JUDGING if role == "critic" else _WRITING,
            max_tokens=_MAX_TOKENS,
            nonce=f"{scene.key}/{draft}",
        )
        try:
            return await ask_structured(self._client, request, schema)
        except AnswerUnusable as unusable:
            raise RoleFailed(role, "answer_unusable", str(unusable)) from unusable
