"""The agent loop: ask, act, observe, until the agent says done or a limit is reached.

Invariants:
- The same loop, session and limits serve solving, rolling out and evaluating: everything that differs is in
  `AgentSettings`.
- How an episode ends is data (`Episode.failure`): `ok` means that the agent said done, not that it was right. Faults
  that end the run and not the episode (BudgetExhausted, ChatRejected) pass through.
- The sandbox's death ends the episode; the agent never sees it.
- The clock counts the model's time and the commands' time as those parts measured them, never our own queueing.
- The history only grows; an agent with memory ends a full one and begins another. What it then begins with stands in
  the turn. Each turn is handed to `on_turn` as soon as it is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from runtime.agent.kind import Agent, Opening, agent_of
from runtime.agent.parser import Command, Done, Malformed
from runtime.agent.policy import Policy, PolicyTurn
from runtime.agent.settings import AgentSettings
from runtime.chat.messages import ChatMessage
from runtime.errors import ChatUnavailable, ContentFiltered, ContextOverflow
from runtime.trajectory import Record, Trajectory, Turn
from sandbox.engine import Session
from sandbox.errors import EngineFault, SandboxLost
from sandbox.spec import CommandResult, FailureClass

GRADABLE = frozenset(
    {
        FailureClass.OK,
        FailureClass.AGENT_TIMEOUT,
        FailureClass.TURN_LIMIT,
        FailureClass.LOOP,
        FailureClass.PARSE,
        FailureClass.CONTEXT_LENGTH,
        FailureClass.OUTPUT_LENGTH,
    }
)
"""Endings that are the agent's own: what it left behind is graded. All others carry no reward."""

OnTurn = Callable[[Turn], Awaitable[None]]


class Episode(Record, frozen=True, kw_only=True):
    """What happened, before anybody graded it."""

    opening: tuple[ChatMessage, ...]
    prompt_version: str
    turns: tuple[Turn, ...]
    failure: FailureClass
    detail: str = ""

    @property
    def gradable(self) -> bool:
        return self.failure in GRADABLE

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands that were run to an observation, in order."""
        return tuple(t.command for t in self.turns if t.command and t.observation is not None)

    @property
    def model_s(self) -> float:
        return sum(t.model_s for t in self.turns)

    @property
    def queue_wait_s(self) -> float:
        return sum(t.queue_wait_s for t in self.turns)

    @property
    def command_s(self) -> float:
        return sum(t.command_s for t in self.turns)

    def record(self, settings: AgentSettings, *, trajectory_id: str, run_id: str, task: str) -> Trajectory:
        """As a trajectory. What only the caller knows (attempt, model, verdict) it adds with `structs.replace`."""
        return Trajectory(
            trajectory_id=trajectory_id,
            run_id=run_id,
            task=task,
            parser_version=settings.parser_version,
            prompt_version=self.prompt_version,
            settings=settings.model_dump(mode="json"),
            opening=self.opening,
            turns=self.turns,
            failure=self.failure,
            detail=self.detail,
        )


@dataclass(frozen=True)
class _Ending:
    failure: FailureClass
    detail: str = ""


async def run_episode(
    policy: Policy,
    session: Session,
    instruction: str,
    settings: AgentSettings,
    *,
    key: str,
    on_turn: OnTurn | None = None,
) -> Episode:
    """Let `policy` work on `instruction` in `session`. `key` names the draw: `<item>/<attempt>`.

    Raises: BudgetExhausted, ChatRejected; what `on_turn` raises.
    """
    agent = agent_of(settings, session, policy.count_tokens)
    opening = Opening(messages=(ChatMessage(role="user", content=instruction),), prompt_version="")
    run = None
    try:
        opening = await agent.open(instruction)
        run = _Run(agent, policy, settings, key, opening)
        ending = await run.to_the_end(on_turn)
    except SandboxLost as exc:
        ending = _Ending(FailureClass.SANDBOX_LOST, str(exc))
    except EngineFault as exc:
        ending = _Ending(FailureClass.EXEC_ERROR, str(exc))
    return Episode(
        opening=opening.messages,
        prompt_version=opening.prompt_version,
        turns=tuple(run.turns) if run else (),
        failure=ending.failure,
        detail=ending.detail,
    )


class _Run:
    """The state of one episode."""

    def __init__(self, agent: Agent, policy: Policy, settings: AgentSettings, key: str, opening: Opening) -> None:
        self.turns: list[Turn] = []
        self._agent, self._policy, self._settings, self._key = agent, policy, settings, key
        self._opening = opening
        self._history: list[ChatMessage | PolicyTurn] = []
        self._fresh: tuple[ChatMessage, ...] = ()
        self._clock_s = 0.0
        self._malformed = 0
        self._repeats = 0
        self._last: tuple[str, CommandResult] | None = None
        self._begin(opening.messages)

    def _begin(self, messages: tuple[ChatMessage, ...]) -> None:
        """Begin a context."""
        self._history = list(messages)

    async def to_the_end(self, on_turn: OnTurn | None) -> _Ending:
        while len(self.turns) < self._settings.max_turns:
            answer = await self._out_of_room() or await self._ask()
            if isinstance(answer, _Ending):
                return answer
            turn, ending = await self._carry_out(answer)
            self.turns.append(msgspec.structs.replace(turn, context=self._fresh))
            self._fresh = ()
            if on_turn:
                await on_turn(self.turns[-1])
            if ending:
                return ending
        return _Ending(FailureClass.TURN_LIMIT, f"{self._settings.max_turns} turns")

    @property
    def _room_tokens(self) -> int:
        return self._settings.context_tokens - self._used_tokens

    @property
    def _used_tokens(self) -> int:
        return self._policy.count_prompt(self._history)

    @property
    def _left_s(self) -> float:
        return self._settings.episode_deadline_s - self._clock_s

    async def _out_of_room(self) -> _Ending | None:
        if self._left_s <= 0:
            return _Ending(FailureClass.AGENT_TIMEOUT, f"{self._clock_s:.0f} s of model and command time")
        used = self._used_tokens
        if self._is_full() and not await self._renewed():
            return _Ending(FailureClass.CONTEXT_LENGTH, f"{used} tokens are used")
        return None

    def _is_full(self) -> bool:
        return self._room_tokens < self._settings.min_answer_tokens

    async def _renewed(self) -> bool:
        """Let the agent begin a fresh context: whether it did, and there is room in it."""
        answered = any(isinstance(entry, PolicyTurn) for entry in self._history)
        fresh = await self._agent.renew(self._opening, self.turns) if answered else ()
        if fresh:
            self._begin(fresh)
            self._fresh = fresh
        return bool(fresh) and not self._is_full()

    async def _ask(self) -> PolicyTurn | _Ending:
        try:
            answer = await self._policy.act(
                tuple(self._history),
                max_tokens=min(self._settings.max_tokens_per_turn, self._room_tokens),
                temperature=self._settings.temperature,
                key=f"{self._key}/{len(self.turns) + 1}",
            )
        except ContextOverflow as exc:
            if await self._renewed():
                return await self._ask()
            return _Ending(FailureClass.CONTEXT_LENGTH, str(exc))
        except ContentFiltered as exc:
            return _Ending(FailureClass.LLM_FILTERED, str(exc))
        except ChatUnavailable as exc:
            return _Ending(FailureClass.LLM_ERROR, str(exc))
        self._history.append(answer)
        self._clock_s += answer.model_s
        return answer

    async def _carry_out(self, answer: PolicyTurn) -> tuple[Turn, _Ending | None]:
        action = self._agent.read(answer.text)
        turn = _turn(len(self.turns) + 1, answer, action.thought)
        if answer.finish in ("filtered", "abort"):
            failure = FailureClass.LLM_FILTERED if answer.finish == "filtered" else FailureClass.LLM_ERROR
            return turn, _Ending(failure, f"the answer ended as '{answer.finish}'")
        match action:
            case Done():
                return msgspec.structs.replace(turn, action="done"), _Ending(FailureClass.OK)
            case Malformed():
                return self._correct(turn, action)
            case Command():
                self._malformed = 0
                turn = msgspec.structs.replace(turn, action="command", command=action.command)
                return await self._act(turn, action)

    def _correct(self, turn: Turn, action: Malformed) -> tuple[Turn, _Ending | None]:
        self._malformed += 1
        cut = turn.finish == "length"
        text = self._agent.correct(action, truncated_at=turn.completion_tokens if cut else None)
        turn = msgspec.structs.replace(turn, problem=action.problem, observation=self._show(text))
        if self._malformed < self._settings.max_malformed:
            return turn, None
        failure = FailureClass.OUTPUT_LENGTH if cut else FailureClass.PARSE
        return turn, _Ending(failure, f"{self._malformed} malformed answers in a row, the last: {action.problem}")

    async def _act(self, turn: Turn, command: Command) -> tuple[Turn, _Ending | None]:
        try:
            acted = await self._agent.act(command, left_s=self._left_s)
        except SandboxLost as exc:
            return turn, _Ending(FailureClass.SANDBOX_LOST, str(exc))
        except EngineFault as exc:
            return turn, _Ending(FailureClass.EXEC_ERROR, str(exc))
        self._clock_s += acted.result.duration_s
        turn = _with_result(turn, acted.result, self._show(acted.observation))
        if acted.done:
            return msgspec.structs.replace(turn, action="done"), _Ending(FailureClass.OK)
        return turn, self._loop(turn.command, acted.result)

    def _show(self, text: str) -> str:
        self._history.append(ChatMessage(role="user", content=text))
        return text

    def _loop(self, command: str, result: CommandResult) -> _Ending | None:
        if not command:  # waiting, or a key: the deadline bounds it
            return None
        this = (command, msgspec.structs.replace(result, duration_s=0.0))
        self._repeats = self._repeats + 1 if this == self._last else 1
        self._last = this
        if self._repeats < self._settings.max_repeats:
            return None
        return _Ending(FailureClass.LOOP, f"the same command gave the same result {self._repeats} times in a row")


def _turn(index: int, answer: PolicyTurn, thought: str) -> Turn:
    """The answer's half of a turn; malformed until its action is known."""
    return Turn(
        index=index,
        text=answer.text,
        action="malformed",
        finish=answer.finish,
        thought=thought,
        reasoning=answer.reasoning,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        model_s=answer.model_s,
        queue_wait_s=answer.queue_wait_s,
        tokens=answer.tokens,
    )


def _with_result(turn: Turn, result: CommandResult, observation: str) -> Turn:
    return msgspec.structs.replace(
        turn,
        observation=observation,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        shell_restarted=result.shell_restarted,
        output_bytes=result.total_bytes,
        dropped_bytes=result.dropped_bytes,
        command_s=result.duration_s,
    )
