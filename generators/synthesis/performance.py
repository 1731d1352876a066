"""One episode of the Generator-Critic protocol, in a started sandbox.

For each turn an intent is drawn; the generator, or the mistake maker, drafts thought and command; the critic accepts or
sends back, a bounded number of times; the command runs in the persistent session, and what it really left is what the
next turn is written for.

Invariants:
- The record reads like any agent's episode: same opening, same answer format, same observations. What was intended,
  and by whom judged, stands in the annotations alone.
- A mistake that leaves no trace, or that the critic never accepts, is not in the record: it is counted, and the turn's
  intent is drawn again, the last time as a correct step.
- A correct step that the critic never accepts is run as last drafted, its verdicts beside it: the sandbox decides.
- No clock is recorded: with players and commands that are deterministic, so is the record.
- Faults of infrastructure pass through; they are never a turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from generators.messages import ErrorType
from generators.roles import RoleFailed
from generators.synthesis.effect import Effect, Probe, effect_of
from generators.synthesis.intents import draw_error
from generators.synthesis.roles import Cast, Scene, Step
from runtime.agent.episode import Episode
from runtime.agent.minimal import open_conversation
from runtime.agent.observation import observe
from runtime.agent.parser import Command, Done, parse_action
from runtime.agent.settings import AgentSettings
from runtime.chat.messages import estimate_tokens
from runtime.errors import ContextOverflow
from runtime.settings import SynthesizeSettings
from runtime.trajectory import CriticVerdict, Turn
from sandbox.engine import Sandbox, Session
from sandbox.spec import CommandResult, FailureClass

Write = Callable[[Sequence[CriticVerdict]], Awaitable[Step]]


def agent_settings(settings: SynthesizeSettings) -> AgentSettings:
    """The limits of an episode, as a trajectory records them."""
    return AgentSettings(
        max_turns=settings.max_turns,
        context_tokens=settings.context_tokens,
        command_timeout_s=settings.command_timeout_s,
    )


async def perform(
    cast: Cast, sandbox: Sandbox, session: Session, instruction: str, settings: SynthesizeSettings, *, key: str
) -> Episode:
    """Let the cast work on `instruction` in a session that has just been opened.

    Raises: RoleFailed, SandboxError; the subclasses of ChatError, but for an overflow of the context, which is an end.
    """
    opening = open_conversation(instruction, agent_settings(settings))
    probe = await Probe.attach(sandbox, session)
    stage = _Performance(cast, session, probe, settings, instruction, key)
    stage.tokens = sum(estimate_tokens(message.content) for message in opening.messages)
    ending = await stage.to_the_end()
    return Episode(
        opening=opening.messages,
        prompt_version=opening.prompt_version,
        turns=tuple(stage.turns),
        failure=ending,
    )


def answer_text(step: Step) -> str:
    """The step as an agent answers."""
    action = "<action>done</action>" if step.done else f"<command>{step.command}</command>"
    return f"<think>{step.thought}</think>\n{action}"


def objection(step: Step) -> str:
    """Why the step cannot be said in the agent's answer format, empty when it can."""
    action = parse_action(answer_text(step))
    meant = Done(step.thought) if step.done else Command(step.command, step.thought)
    return "" if action == meant else "Thought and command must not hold tags, and neither begin nor end with blanks."


class _Performance:
    """The state of one episode."""

    def __init__(
        self, cast: Cast, session: Session, probe: Probe, settings: SynthesizeSettings, instruction: str, key: str
    ) -> None:
        self.turns: list[Turn] = []
        self.tokens = 0
        """Of the conversation so far."""
        self._cast, self._session, self._probe, self._settings = cast, session, probe, settings
        self._agent = agent_settings(settings)
        self._instruction, self._key = instruction, key
        self._weights = settings.error_weights.model_dump()
        self._printed: set[str] = set()

    async def to_the_end(self) -> FailureClass:
        while len(self.turns) < self._settings.max_turns:
            if self._agent.context_tokens - self.tokens < self._agent.min_answer_tokens:
                return FailureClass.CONTEXT_LENGTH
            try:
                turn = await self._turn()
            except ContextOverflow:
                return FailureClass.CONTEXT_LENGTH
            self.turns.append(turn)
            self.tokens += turn.completion_tokens + estimate_tokens(turn.observation or "")
            if turn.action == "done":
                return FailureClass.OK
        return FailureClass.TURN_LIMIT

    async def _turn(self) -> Turn:
        tried: list[str] = []
        for draw in range(self._settings.draws):
            scene = self._scene(draw, tried)
            possible = self._cast.mistake_maker.possible(scene)
            error_type = draw_error(scene.key, rate=self._settings.error_rate, weights=self._weights, possible=possible)
            if error_type is None:
                break
            turn = await self._mistake(scene, error_type, tried)
            if turn is not None:
                return replace(turn, discarded=draw)
        return await self._correct(self._scene(self._settings.draws, tried), discarded=len(tried))

    def _scene(self, draw: int, tried: Sequence[str]) -> Scene:
        key = f"{self._key}/{len(self.turns) + 1}/{draw}"
        return Scene(instruction=self._instruction, turns=tuple(self.turns), tried=tuple(tried), key=key)

    async def _correct(self, scene: Scene, *, discarded: int) -> Turn:
        async def write(drafts: Sequence[CriticVerdict]) -> Step:
            return await self._cast.generator.step(scene, drafts=drafts)

        step, verdicts = await self._draft(scene, write, None)
        if problem := objection(step):
            raise RoleFailed("generator", "answer_unusable", problem)
        turn = replace(self._written(step), intent="correct", critic=verdicts, discarded=discarded)
        return turn if step.done else self._with_result(turn, await self._run(step))

    async def _mistake(self, scene: Scene, error_type: ErrorType, tried: list[str]) -> Turn | None:
        """The turn of a mistake with an effect; else None, and the command is among the `tried`."""

        async def write(drafts: Sequence[CriticVerdict]) -> Step:
            return await self._cast.mistake_maker.mistake(scene, error_type, drafts=drafts)

        step, verdicts = await self._draft(scene, write, error_type)
        if not verdicts[-1].accepted:
            tried.append(step.command)
            return None
        result, effect = await self._run_watched(step)
        if not effect:
            tried.append(step.command)
            return None
        turn = replace(
            self._written(step),
            intent="error",
            error_type=error_type,
            critic=verdicts,
            effect=effect,
            loss_weight=self._settings.mistake_weight,
        )
        return self._with_result(turn, result)

    async def _draft(
        self, scene: Scene, write: Write, error_type: ErrorType | None
    ) -> tuple[Step, tuple[CriticVerdict, ...]]:
        """The last draft, with what was said of each."""
        verdicts: list[CriticVerdict] = []
        while True:
            step = await write(tuple(verdicts))
            verdicts.append(await self._judge(scene, step, error_type, len(verdicts)))
            if verdicts[-1].accepted or len(verdicts) >= self._settings.critic_rounds:
                return step, tuple(verdicts)

    async def _judge(self, scene: Scene, step: Step, error_type: ErrorType | None, draft: int) -> CriticVerdict:
        if problem := objection(step):
            return CriticVerdict(accepted=False, critique=problem, rejected_command=step.command)
        return await self._cast.critic.judge(scene, step, error_type, draft=draft)

    def _written(self, step: Step) -> Turn:
        text = answer_text(step)
        return Turn(
            index=len(self.turns) + 1,
            text=text,
            action="done" if step.done else "command",
            thought=step.thought,
            command=step.command,
            prompt_tokens=self.tokens,
            completion_tokens=estimate_tokens(text),
        )

    async def _run(self, step: Step) -> CommandResult:
        return await self._session.run(step.command, timeout_s=self._settings.command_timeout_s)

    async def _run_watched(self, step: Step) -> tuple[CommandResult, Effect]:
        last = self.turns[-1].exit_code if self.turns else 0
        before = await self._probe.take(last)
        result = await self._run(step)
        after = await self._probe.take(result.exit_code)
        return result, effect_of(before, after, result, self._printed)

    def _with_result(self, turn: Turn, result: CommandResult) -> Turn:
        self._printed.add(result.output)
        observation = observe(
            result,
            max_tokens=self._agent.observation_tokens,
            count_tokens=estimate_tokens,
            timeout_s=self._settings.command_timeout_s,
        )
        return replace(
            turn,
            observation=observation,
            exit_code=result.exit_code,
            timed_out=result.timed_out,
            shell_restarted=result.shell_restarted,
            output_bytes=result.total_bytes,
            dropped_bytes=result.dropped_bytes,
        )
