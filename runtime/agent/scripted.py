"""Doubles for the two sides of the agent loop: a policy that follows a script, a session that needs no sandbox.

Both are for tests and for trying out a stage without a model or an engine. A scripted entry that is an exception is
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.agent.policy import History, PolicyTurn, estimate_prompt
from runtime.chat.messages import ChatMessage, estimate_tokens
from sandbox.spec import CommandResult

Ran = CommandResult | str | Exception
"""What a command comes to; a string is its output, with exit code 0."""


class ScriptedPolicy:
    """Says its lines in order. Stateless like every policy: the history tells which line is next."""

    def __init__(self, lines: Sequence[str | PolicyTurn | Exception]) -> None:
        self._lines = tuple(lines)

    async def act(self, history: History, *, max_tokens: int, temperature: float, key: str) -> PolicyTurn:
        said = sum(isinstance(entry, PolicyTurn) for entry in history)
        line = self._lines[said]
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, PolicyTurn) else self._counted(line, history, max_tokens)

    def count_tokens(self, text: str) -> int:
        return estimate_tokens(text)

    def count_prompt(self, history: History) -> int:
        return estimate_prompt(history)

    def _counted(self, line: str, history: History, max_tokens: int) -> PolicyTurn:
        """With token counts, and cut where `max_tokens` cuts it."""
        text = line if estimate_tokens(line) <= max_tokens else line[: 4 * (max_tokens - 1)]
        prompt = sum(estimate_tokens(e.content if isinstance(e, ChatMessage) else e.text) for e in history)
        return PolicyTurn(
            text=text,
            finish="stop" if text == line else "length",
            prompt_tokens=prompt,
            completion_tokens=estimate_tokens(text),
        )


class ScriptedSession:
    """A session whose commands come to what a script says: a callable, or results in order."""

    def __init__(self, results: Sequence[Ran] | Callable[[str], Ran]) -> None:
        self.commands: list[str] = []
        self.timeouts_s: list[float] = []
        self.closed = False
        self._results = results

    async def run(self, command: str, *, timeout_s: float = 10.0, stdin: bytes | None = None) -> CommandResult:
        self.commands.append(command)
        self.timeouts_s.append(timeout_s)
        results = self._results
        ran = results(command) if callable(results) else results[len(self.commands) - 1]
        if isinstance(ran, Exception):
            raise ran
        if isinstance(ran, CommandResult):
            return ran
        return CommandResult(output=ran, exit_code=0, total_bytes=len(ran.encode()))

    async def aclose(self) -> None:
        self.closed = True
