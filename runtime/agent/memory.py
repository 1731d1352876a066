"""An agent with memory: when its context is full, it goes on in a fresh one that begins with a summary of what it did.

The summary is made from the record, not by the model: it costs no call, and the same turns give the same text.

Invariants:
- A context is never edited: it ends, and another begins. Within one, ids are only appended; across two they are not, so
  an episode is as many training sequences as it had contexts (`runtime.trajectory.segments`).
- The summary is at most `memory_tokens` long, however long the episode was. The newest commands are kept, older ones
  counted.
- The state that it tells (directory, background jobs) is asked of the shell at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.agent.kind import Opening
from runtime.agent.minimal import LIBRARY, MinimalAgent
from runtime.agent.observation import fit
from runtime.chat.messages import ChatMessage
from runtime.trajectory import Turn

_STATE = 'builtin printf "directory: %s\\n" "$PWD"; builtin jobs'
_STATE_TIMEOUT_S = 10.0
_COMMAND_CHARS, _LINE_CHARS = 240, 100
_LEAST_TOKENS = 16
"""Shown of the last result and of the last thought, however small the summary has to be."""


class MemoryAgent(MinimalAgent):
    """See `runtime.agent.kind.Agent`."""

    async def renew(self, opening: Opening, turns: Sequence[Turn]) -> tuple[ChatMessage, ...]:
        state = await self._session.run(_STATE, timeout_s=_STATE_TIMEOUT_S)
        *before, instruction = opening.messages
        content = f"{instruction.content}\n\n{self._summary(turns, state.output)}"
        return (*before, ChatMessage(role=instruction.role, content=content))

    def _summary(self, turns: Sequence[Turn], state: str) -> str:
        """A half for the commands, an eighth for the state, the rest for the last thought and the last result."""
        budget = self._settings.memory_tokens
        last = turns[-1]
        commands = [line for turn in turns if (line := _line(turn))]
        shown = list(self._newest(commands, budget // 2))
        prompt = LIBRARY.render(
            "memory",
            turns=len(turns),
            left=self._settings.max_turns - len(turns),
            dropped=len(commands) - len(shown),
            commands=shown,
            state=self._cut(state.strip(), budget // 8),
            thought=self._cut(last.thought, budget // 8),
            result=self._cut(last.observation or "", budget // 8),
        )
        return prompt.text

    def _newest(self, lines: Sequence[str], tokens: int) -> Iterator[str]:
        """As many of the last lines as fit, in their order."""
        first = len(lines)
        while first > 0 and (tokens := tokens - self._count_tokens(lines[first - 1])) >= 0:
            first -= 1
        yield from lines[first:]

    def _cut(self, text: str, tokens: int) -> str:
        return fit(text, max(tokens, _LEAST_TOKENS), self._count_tokens)[0]


def _line(turn: Turn) -> str:
    """One command and what came of it; empty for a turn without one."""
    if turn.action != "command":
        return ""
    ending, *rest = (turn.observation or "exit code: none").splitlines()
    output = next((line for line in rest if line.strip() and not line.startswith(("note: ", "output:"))), "")
    command = " ; ".join(turn.command.splitlines())
    return f"{turn.index}. {_short(command, _COMMAND_CHARS)} -> {ending}{output and ', ' + _short(output, _LINE_CHARS)}"


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 4]} ..."
