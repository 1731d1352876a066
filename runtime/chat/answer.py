"""From an endpoint's reply to a `Completion`, whatever dialect it speaks.

Invariants:
- Reasoning comes from the fields that servers use for it (`reasoning_content`, `reasoning`); the text is never
  searched here.
- An answer in the form of a tool call becomes text: the arguments of the first call, when there is no content.
- A reply without a choice, or of another shape, is no answer (`NoAnswerError`): some proxies report an error that way,
  with status 200.
- Texts can be written as UTF-8: half a surrogate pair, as a cut token leaves it, becomes `?`.
"""

from __future__ import annotations

from typing import Any

from runtime.chat.messages import Completion, Finish, estimate_tokens
from runtime.plain_text import encodable

_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "filtered", "abort": "abort"}
"""Anything else (`stop`, `tool_calls`, `eos`, ...) is the model's own end."""


class NoAnswerError(Exception):
    """The endpoint replied, but with no choice in it that could be read."""

    def __init__(self, reply: object) -> None:
        super().__init__(f"no choice in the reply: {str(reply)[:200]}")


def read_completion(reply: Any, *, prompt_estimate: int) -> Completion:
    """Read an SDK reply. `prompt_estimate` stands in where the endpoint tells no usage.

    Raises: NoAnswerError.
    """
    try:
        return _read(reply, prompt_estimate)
    except (AttributeError, TypeError) as error:  # the SDK hands on whatever JSON there is
        raise NoAnswerError(reply) from error


def _read(reply: Any, prompt_estimate: int) -> Completion:
    choices = getattr(reply, "choices", None)
    if not choices or choices[0].message is None:
        raise NoAnswerError(reply)
    message = choices[0].message
    text, tool = _text_and_tool(message)
    reasoning = encodable(getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or "")
    usage = reply.usage
    return Completion(
        text=text,
        tool=tool,
        reasoning=reasoning,
        finish=_FINISH.get(choices[0].finish_reason or "", "stop"),
        model=reply.model or "",
        raw_id=reply.id or "",
        prompt_tokens=usage.prompt_tokens if usage else prompt_estimate,
        completion_tokens=usage.completion_tokens if usage else estimate_tokens(text + reasoning),
        usage_estimated=usage is None,
    )


def _text_and_tool(message: Any) -> tuple[str, str]:
    text = message.content or ""
    calls = message.tool_calls or []
    function = getattr(calls[0], "function", None) if calls else None
    if text.strip() or function is None:
        return encodable(text), ""
    return encodable(function.arguments or ""), encodable(function.name or "")
