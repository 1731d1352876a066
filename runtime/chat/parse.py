"""Reading model output: one tolerant extractor for all callers.

Invariants:
- Reasoning is never an answer. `<think>`, `<thinking>` and `<reasoning>` blocks are dropped, also unclosed ones
  (everything after the opening) and those whose opening stands in the prompt (everything before an unmatched closing).
- Whatever opens first owns the text up to its closing: a reasoning tag named inside a command is text of the command, a
  command inside reasoning is reasoning. A block that is opened twice begins at the second opening: the first was prose.
- JSON: the last complete object that stands on its own wins; an array only where there is no object. When the last one
  is cut off nothing wins, not even an earlier draft.
- Its texts can be written as UTF-8: an escape that is half a surrogate pair becomes `?`.
- A failure keeps the whole text (`AnswerUnusable`).

A change in what is taken is a new `JSON_VERSION`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from runtime.chat.messages import ChatMessage, ChatRequest, Completer, Completion
from runtime.errors import AnswerUnusable, ContentFiltered
from runtime.plain_text import encodable

JSON_VERSION = 1
REASONING_TAGS = ("think", "thinking", "reasoning")

_MAX_STARTS = 10_000
"""Brackets tried as the beginning of JSON: bounds the time that a degenerate answer can take."""
_MAX_SHOWN_PROBLEMS = 10
_FENCE = re.compile(r"\A\s*```[^\n`]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_REASONING_END = re.compile(rf"</({'|'.join(REASONING_TAGS)})\s*>", re.IGNORECASE)


def _next_other(text: str, position: int) -> int:
    """The end of a run of brackets: nothing sensible begins in nesting that deep."""
    run = re.compile(r"[\[{\s]*").match(text, position)
    return max(position + 1, run.end() if run else 0)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)
Schema = TypeVar("Schema", bound=BaseModel)


@dataclass(frozen=True)
class Span:
    """A piece of a text: a tagged block, or plain text (`tag` empty)."""

    tag: str
    content: str
    closed: bool = True


def scan(text: str, tags: Sequence[str]) -> Iterator[Span]:
    """Cut `text` into plain text and the blocks of `tags`, left to right.

    Tags are matched in any case; other tags inside a block are its content; an empty `<tag/>` is a block with none.
    """
    opening = re.compile(rf"<({'|'.join(map(re.escape, tags))})\s*(/?)>", re.IGNORECASE)
    position = 0
    while found := opening.search(text, position):
        tag = found[1].lower()
        closing = re.compile(rf"</{tag}\s*>", re.IGNORECASE).search(text, found.end())
        closed = bool(found[2] or closing)
        end = found.end() if found[2] else closing.start() if closing else len(text)
        start = found.end() if tag in REASONING_TAGS else _last_opening(text, tag, found.end(), end)
        begins = found.start() if start == found.end() else start - len(f"<{tag}>")
        if begins > position:
            yield Span("", text[position:begins])
        yield Span(tag, text[start:end], closed)
        position = closing.end() if closing and not found[2] else end
    if position < len(text):
        yield Span("", text[position:])


def _last_opening(text: str, tag: str, start: int, end: int) -> int:
    """Where the content of a block begins that may have been opened twice."""
    again = text.lower().rfind(f"<{tag}>", start, end)
    return start if again < 0 else again + len(f"<{tag}>")


def split_reasoning(text: str, tags: Sequence[str] = ()) -> tuple[list[Span], str]:
    """The spans outside reasoning, with blocks of `tags` apart, and the reasoning."""
    lead, spans = _leading_reasoning(list(scan(text, (*tags, *REASONING_TAGS))))
    thoughts = [lead, *(span.content for span in spans if span.tag in REASONING_TAGS)]
    return [s for s in spans if s.tag not in REASONING_TAGS], "\n".join(t.strip() for t in thoughts if t.strip())


def _leading_reasoning(spans: list[Span]) -> tuple[str, list[Span]]:
    """Reasoning whose opening tag was part of the prompt: plain text holds a closing tag that nothing opened."""
    for index, span in enumerate(spans):
        if span.tag in REASONING_TAGS:
            break
        closing = _REASONING_END.search(span.content) if not span.tag else None
        if closing:
            lead = "".join(s.content for s in spans[:index]) + span.content[: closing.start()]
            return lead, [Span("", span.content[closing.end() :]), *spans[index + 1 :]]
    return "", spans


def strip_reasoning(text: str) -> str:
    """The answer alone."""
    return "".join(span.content for span in split_reasoning(text)[0]).strip()


def strip_fence(text: str) -> str:
    """What stands in a code fence, when the whole text is one; else the text as it is."""
    found = _FENCE.match(text)
    return found[1] if found else text


def extract_blocks(text: str, tags: Sequence[str]) -> list[Span]:
    """The closed blocks of `tags` outside reasoning, in order."""
    return [span for span in split_reasoning(text, tags)[0] if span.tag and span.closed]


def extract_json(text: str) -> Any:
    """The JSON value that the answer consists of or ends with. Raises: AnswerUnusable."""
    answer = strip_reasoning(text)
    objects: list[Any] = []
    arrays: list[Any] = []
    for value in _values(answer):
        if isinstance(value, _CutOff):
            raise AnswerUnusable(["the JSON is cut off before its end"], text=text)
        (objects if isinstance(value, dict) else arrays).append(value)
    if not objects and not arrays:
        raise AnswerUnusable(["there is no JSON in the answer" if answer else "the answer is empty"], text=text)
    return (objects or arrays)[-1]


class _CutOff:
    """In place of a value that began and did not end."""


def _values(text: str) -> Iterator[Any]:
    """Every object and array that stands on its own."""
    position, end = 0, len(text.rstrip())
    for _ in range(_MAX_STARTS):
        start = _next_bracket(text, position)
        if start < 0:
            return
        try:
            value, end_of_value = _decoder.raw_decode(text, start)
            value = _encodable(value)
        except json.JSONDecodeError as exc:
            if exc.pos >= end or exc.msg.startswith("Unterminated string"):
                yield _CutOff()
                return
            position = start + 1
        except RecursionError:
            position = _next_other(text, start)
        except ValueError:
            position = start + 1
        else:
            position = end_of_value
            yield value


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return encodable(value)
        case list():
            return [_encodable(part) for part in value]
        case dict():
            return {encodable(key): _encodable(part) for key, part in value.items()}
    return value


def _next_bracket(text: str, position: int) -> int:
    starts = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
    return min(starts, default=-1)


def read_structured(completion: Completion, schema: type[Schema]) -> Schema:
    """The completion's JSON as `schema`. Raises: AnswerUnusable."""
    try:
        return schema.model_validate(extract_json(completion.text))
    except AnswerUnusable as exc:
        raise AnswerUnusable(
            _with_finish(exc.problems, completion), text=completion.text, finish=completion.finish
        ) from exc
    except ValidationError as exc:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'the object'}: {e['msg']}" for e in exc.errors()]
        raise AnswerUnusable(problems, text=completion.text, finish=completion.finish) from exc


def _with_finish(problems: Sequence[str], completion: Completion) -> list[str]:
    if completion.finish == "length":
        return [*problems, f"the answer reached the limit of {completion.completion_tokens} tokens"]
    return [*problems, "all of it is reasoning"] if completion.reasoning_only else list(problems)


async def ask_structured(client: Completer, request: ChatRequest, schema: type[Schema]) -> Schema:
    """Ask for a JSON object; when it cannot be read, show the model what is wrong with it, once.

    Raises: AnswerUnusable with the second answer's text; ContentFiltered; what `complete` raises.
    """
    completion = await _complete_unfiltered(client, request)
    try:
        return read_structured(completion, schema)
    except AnswerUnusable as unusable:
        repair = _repair_request(request, completion, unusable.problems)
    return read_structured(await _complete_unfiltered(client, repair), schema)


async def _complete_unfiltered(client: Completer, request: ChatRequest) -> Completion:
    completion = await client.complete(request)
    if completion.finish == "filtered":
        raise ContentFiltered(completion.model, f"the answer to '{request.purpose}' was cut by the endpoint's filter")
    return completion


def _repair_request(request: ChatRequest, completion: Completion, problems: Sequence[str]) -> ChatRequest:
    shown = "\n".join(f"- {problem}" for problem in problems[:_MAX_SHOWN_PROBLEMS])
    complaint = (
        f"That answer cannot be used:\n{shown}\n\n"
        "Answer again with the complete, corrected JSON object and nothing else. Keep it short enough to fit."
    )
    turn = (
        # An endpoint may refuse an empty assistant message.
        ChatMessage(role="assistant", content=completion.text if not completion.is_empty else "(no answer)"),
        ChatMessage(role="user", content=complaint),
    )
    return msgspec.structs.replace(request, messages=request.messages + turn)
