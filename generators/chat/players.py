"""The chat cast: each role is one prompt to an OpenAI-compatible endpoint and one JSON answer, or an episode.

Invariants:
- The public instruction is all that solver and cheater are told; the truth goes to furnisher, examiner and nobody else.
- A player keeps no state. Its call's nonce names the item and the round, so a redelivered item pays for nothing twice.
- An answer that stays unusable after its repair turn is `RoleFailed`; faults of the endpoint pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from generators.taxonomy import load_taxonomy
from runtime.agent.episode import run_episode
from runtime.agent.policy import ChatPolicy
from runtime.agent.settings import SOLVE, AgentSettings
from runtime.chat.messages import ChatMessage, ChatRequest, Completer
from runtime.chat.parse import ask_structured
from runtime.chat.prompts import PromptLibrary
from runtime.errors import AnswerUnusable
from sandbox.base import BASE_DOCKERFILE, BASE_PACKAGES, SERVICE_PACKAGES, base_dockerfile
from sandbox.engine import Sandbox
from sandbox.services import entry_point

STYLES = ("style_exact", "style_conversational", "style_brief", "style_vague")
"""How a request is worded, one template a style: from the exact one to the way people really ask."""
PROMPTS = ("draft", "review", "furnish", "examine", "judge", "cheat", *STYLES)

_CLOSE_TIMEOUT_S = 10.0
_TEMPERATURES = {"draft": 1.0}
_TEMPERATURE = 0.6
"""Drafts should differ from each other; everything built on a draft should be careful."""
_SHOWN_FILE_CHARS = 4000

_library = PromptLibrary("generators.chat")

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Asker:
    """How all roles ask: one prompt, one JSON answer."""

    client: Completer
    temperature: float | None
    """None: each role has its own."""
    max_tokens: int

    async def ask(self, role: str, schema: type[Schema], *, nonce: str, **values: object) -> Schema:
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=_library.render(role, **values).text),),
            purpose=role,
            temperature=_TEMPERATURES.get(role, _TEMPERATURE) if self.temperature is None else self.temperature,
            max_tokens=self.max_tokens,
            nonce=nonce,
        )
        try:
            return await ask_structured(self.client, request, schema)
        except AnswerUnusable as unusable:
            raise RoleFailed(role, "answer_unusable", str(unusable)) from unusable


class ChatDrafter:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def draft(self, blueprint: Blueprint, *, feedback: Sequence[str] = ()) -> Draft:
        nonce = f"{blueprint.seed}/{len(feedback)}"
        answer = await self._asker.ask(
            "draft",
            DraftAnswer,
            nonce=nonce,
            blueprint=blueprint,
            style=_library.render(f"style_{blueprint.style}").text,
            voice=load_taxonomy().persona(blueprint.persona).voice if blueprint.persona else "",
            feedback=feedback,
        )
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
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def review(self, blueprint: Blueprint, draft: Draft) -> Review:
        answer = await self._asker.ask(
            "review", ReviewAnswer, nonce=str(blueprint.seed), blueprint=blueprint, draft=draft, packages=BASE_PACKAGES
        )
        return Review(**answer.model_dump())


class ChatFurnisher:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def furnish(self, blueprint: Blueprint, draft: Draft, *, feedback: Sequence[str] = ()) -> Environment:
        answer = await self._asker.ask(
            "furnish",
            EnvironmentAnswer,
            nonce=f"{blueprint.seed}/{len(feedback)}",
            draft=draft,
            base=BASE_DOCKERFILE,
            service_packages=SERVICE_PACKAGES,
            feedback=feedback,
        )
        services = tuple(service.service() for service in answer.services)
        scripts, entry = entry_point(services)
        return Environment(
            dockerfile=f"{base_dockerfile(answer.packages)}{answer.dockerfile.strip()}\n{entry}",
            files=(*(file.file() for file in answer.files), *scripts),
            initial_tests=answer.initial_tests,
            services=services,
        )


class ChatExaminer:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def examine(
        self, blueprint: Blueprint, draft: Draft, environment: Environment, *, feedback: Sequence[str] = ()
    ) -> str:
        answer = await self._asker.ask(
            "examine",
            FinalTestsAnswer,
            nonce=f"{blueprint.seed}/{len(feedback)}",
            draft=draft,
            environment=environment,
            files=_shown(environment),
            feedback=feedback,
        )
        return answer.final_tests


class ChatJudge:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def judge(self, draft: Draft, environment: Environment, final_tests: str) -> Judgement:
        answer = await self._asker.ask(
            "judge",
            JudgementAnswer,
            nonce="",
            draft=draft,
            dockerfile=environment.dockerfile,
            files=_shown(environment),
            final_tests=final_tests,
        )
        return Judgement(unstated=answer.unstated, untested=answer.untested)


class ChatSolver:
    """Plays episodes in the agent loop that rollouts and evaluation use. `purpose` tells author and policy apart."""

    def __init__(self, client: Completer, settings: AgentSettings, *, purpose: str = "solve") -> None:
        self._client, self._settings, self._purpose = client, settings, purpose

    async def solve(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox, *, attempt: int) -> Played:
        key = f"{blueprint.seed}/{self._purpose}/{attempt}"
        return await _episode(
            self._client, self._purpose, sandbox, instruction=draft.instruction, settings=self._settings, key=key
        )

    def reference(self, blueprint: Blueprint) -> Reference | None:
        return None


class ChatCheater:
    """The same loop, asked to get past the tests without doing the work."""

    def __init__(self, client: Completer, settings: AgentSettings) -> None:
        self._client, self._settings = client, settings

    async def cheat(self, blueprint: Blueprint, draft: Draft, sandbox: Sandbox) -> Played:
        prompt = _library.render("cheat", instruction=draft.instruction)
        key = f"{blueprint.seed}/cheat"
        return await _episode(self._client, "cheat", sandbox, instruction=prompt.text, settings=self._settings, key=key)


def chat_cast(
    client: Completer, *, temperature: float | None = None, max_tokens: int = 8192, agent: AgentSettings = SOLVE
) -> Cast:
    """A full cast of chat players on one endpoint; `temperature` and `max_tokens` are those of the `chat` settings."""
    asker = Asker(client=client, temperature=temperature, max_tokens=max_tokens)
    playing = _playing(agent, temperature)
    return Cast(
        drafter=ChatDrafter(asker),
        reviewer=ChatReviewer(asker),
        furnisher=ChatFurnisher(asker),
        examiner=ChatExaminer(asker),
        judge=ChatJudge(asker),
        solver=ChatSolver(client, playing),
        cheater=ChatCheater(client, playing),
    )


def measured_solver(client: Completer, *, temperature: float | None = None) -> ChatSolver:
    """A policy whose pass rate is to be known."""
    return ChatSolver(client, _playing(SOLVE, temperature), purpose="measure")


def _playing(agent: AgentSettings, temperature: float | None) -> AgentSettings:
    return agent if temperature is None else agent.model_copy(update={"temperature": temperature})


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
