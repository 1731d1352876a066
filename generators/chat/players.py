"""The chat cast: each role is one prompt to an OpenAI-compatible endpoint and one JSON answer, or an episode.

Invariants:
- The public instruction is all that solver and cheater are told; the truth goes to furnisher, examiner and nobody else.
- A player keeps no state. Its call's nonce names the item and the round, so a redelivered item pays for nothing twice.
- An answer that stays unusable after its repair turn is `RoleFailed`; faults of the endpoint pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import anyio
from pydantic import BaseModel

from generators.chat.answers import (
    MIN_TRUTH_CHARS,
    DraftAnswer,
    EnvironmentAnswer,
    FinalTestsAnswer,
    JudgementAnswer,
    ReviewAnswer,
)
from generators.messages import Blueprint, Draft, Environment, Reference, Truth
from generators.roles import Cast, Judgement, Played, Review, RoleFailed
from runtime.agent.episode import run_episode
from runtime.agent.policy import ChatPolicy
from runtime.agent.settings import SOLVE, AgentSettings
from runtime.chat.messages import ChatMessage, ChatRequest, Completer
from runtime.chat.parse import ask_structured
from runtime.chat.prompts import PromptLibrary
from runtime.errors import AnswerUnusable
from sandbox.base import BASE_DOCKERFILE, BASE_PACKAGES
from sandbox.engine import Sandbox

PROMPTS = ("draft", "review", "furnish", "examine", "judge", "cheat")

_CLOSE_TIMEOUT_S = 10.0
_MAX_TOKENS = 8192
"""Tests and files of a task in one JSON object; longer answers are cut and get their repair turn."""
_DRAFT_TEMPERATURE = 1.0
_TEMPERATURE = 0.6
"""Drafts should differ from each other; everything built on a draft should be careful."""
_SHOWN_FILE_CHARS = 4000

_library = PromptLibrary("generators.chat")

Schema = TypeVar("Schema", bound=BaseModel)


class _Asker:
    """One role's way to ask."""

    def __init__(self, client: Completer, role: str, *, temperature: float = _TEMPERATURE) -> None:
        self._client, self._role, self._temperature = client, role, temperature

    async def ask(self, schema: type[Schema], *, nonce: str, **values: object) -> Schema:
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=_library.render(self._role, **values).text),),
            purpose=self._role,
            temperature=self._temperature,
            max_tokens=_MAX_TOKENS,
            nonce=nonce,
        )
        try:
            return await ask_structured(self._client, request, schema)
        except AnswerUnusable as unusable:
            raise RoleFailed(self._role, "answer_unusable", str(unusable)) from unusable


class ChatDrafter:
    def __init__(self, client: Completer) -> None:
        self._asker = _Asker(client, "draft", temperature=_DRAFT_TEMPERATURE)

    async def draft(self, blueprint: Blueprint, *, feedback: Sequence[str] = ()) -> Draft:
        nonce = f"{blueprint.seed}/{len(feedback)}"
        answer = await self._asker.ask(DraftAnswer, nonce=nonce, blueprint=blueprint, feedback=feedback)
        strings = (text.strip() for text in answer.truth_strings)
        return Draft(
            title=answer.title,
            instruction=answer.instruction,
            truth=Truth(notes=answer.truth_notes, strings=tuple(s for s in strings if len(s) >= MIN_TRUTH_CHARS)),
            category=blueprint.category,
            difficulty=answer.difficulty,
            tags=answer.tags,
            level=blueprint.level,
        )


class ChatReviewer:
    def __init__(self, client: Completer) -> None:
        self._asker = _Asker(client, "review")

    async def review(self, blueprint: Blueprint, draft: Draft) -> Review:
        answer = await self._asker.ask(
            ReviewAnswer, nonce=str(blueprint.seed), blueprint=blueprint, draft=draft, packages=BASE_PACKAGES
        )
        return Review(**answer.model_dump())


class ChatFurnisher:
    def __init__(self, client: Completer) -> None:
        self._asker = _Asker(client, "furnish")

    async def furnish(self, blueprint: Blueprint, draft: Draft, *, feedback: Sequence[str] = ()) -> Environment:
        answer = await self._asker.ask(
            EnvironmentAnswer,
            nonce=f"{blueprint.seed}/{len(feedback)}",
            draft=draft,
            base=BASE_DOCKERFILE,
            feedback=feedback,
        )
        return Environment(
            dockerfile=f"{BASE_DOCKERFILE}{answer.dockerfile.strip()}\n",
            files=tuple(file.file() for file in answer.files),
            initial_tests=answer.initial_tests,
        )


class ChatExaminer:
    def __init__(self, client: Completer) -> None:
        self._asker = _Asker(client, "examine")

    async def examine(
        self, blueprint: Blueprint, draft: Draft, environment: Environment, *, feedback: Sequence[str] = ()
    ) -> str:
        answer = await self._asker.ask(
            FinalTestsAnswer,
            nonce=f"{blueprint.seed}/{len(feedback)}",
            draft=draft,
            environment=environment,
            files=_shown(environment),
            feedback=feedback,
        )
        return answer.final_tests


class ChatJudge:
    def __init__(self, client: Completer) -> None:
        self._asker = _Asker(client, "judge")

    async def judge(self, draft: Draft, environment: Environment, final_tests: str) -> Judgement:
        answer = await self._asker.ask(
            JudgementAnswer, nonce="", draft=draft, files=_shown(environment), final_tests=final_tests
        )
        return Judgement(unstated=answer.unstated, untested=answer.untested)


class ChatSolver:
    """Plays episodes in the agent loop that rollouts and evaluation use."""

    def __init__(self, client: Completer, settings: AgentSettings = SOLVE) -> None:
        self._client, self._settings = client, settings

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played:
        key = f"{blueprint.seed}/solve/{attempt}"
        return await _episode(
            self._client, "solve", sandbox, instruction=draft.instruction, settings=self._settings, key=key
        )

    def reference(self, blueprint: Blueprint) -> Reference | None:
        return None


class ChatCheater:
    """The same loop, asked to get past the tests without doing the work."""

    def __init__(self, client: Completer, settings: AgentSettings = SOLVE) -> None:
        self._client, self._settings = client, settings

    async def cheat(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox) -> Played:
        prompt = _library.render("cheat", instruction=draft.instruction)
        key = f"{blueprint.seed}/cheat"
        return await _episode(self._client, "cheat", sandbox, instruction=prompt.text, settings=self._settings, key=key)


def chat_cast(client: Completer, settings: AgentSettings = SOLVE) -> Cast:
    """A full cast of chat players on one endpoint."""
    return Cast(
        drafter=ChatDrafter(client),
        reviewer=ChatReviewer(client),
        furnisher=ChatFurnisher(client),
        examiner=ChatExaminer(client),
        judge=ChatJudge(client),
        solver=ChatSolver(client, settings),
        cheater=ChatCheater(client, settings),
    )


def prompt_versions() -> dict[str, str]:
    """Version and hash of each template, as the certificate records them."""
    return {name: _library.version(name) for name in PROMPTS}


async def _episode(
    client: Completer, purpose: str, sandbox: Sandbox, *, instruction: str, settings: AgentSettings, key: str
) -> Played:
    session = await sandbox.open_session()
    try:
        episode = await run_episode(ChatPolicy(client, purpose=purpose), session, instruction, settings, key=key)
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await session.aclose()
    return Played(commands=episode.commands, turns=len(episode.turns), failure=episode.failure)


def _shown(environment: Environment) -> list[tuple[str, str]]:
    """Path and text of each file, long ones cut, as examiner and judge see them."""
    return [(file.path, file.data.decode(errors="replace")[:_SHOWN_FILE_CHARS]) for file in environment.files]
