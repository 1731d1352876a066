"""From messages to token ids and back, without ever tokenising what the policy sampled.

A conversation is a list of segments; each is encoded by itself and appended. Sampled tokens are appended as they
came. So the prompt of a turn is the prompt of the turn before, plus what was sampled, plus the new observation: a
prefix by construction, and asserted (`Transcript.extend`).

Text that came from outside (instructions, command output, files) is encoded with special tokens switched off: a
`<|im_end|>` in a file is six ordinary tokens, never the end of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """How a family of models frames a conversation. Markers are special tokens; role names are ordinary text.

    A turn is `open`, role, `after_role`, text, `close`, `after_close`; the model's own turn ends by sampling one of
    `stops`.
    """

    name: str
    begin: tuple[str, ...] = ()
    """Special tokens at the very start."""
    open: str
    between: str = ""
    """Special token between role and text, if any."""
    after_role: str
    """Ordinary text between role and message."""
    close: str
    """Special token that ends a turn; the policy samples it."""
    after_close: str = ""
    """Ordinary text after it, which nobody samples."""
    roles: tuple[tuple[str, str], ...] = ()
    """Names that differ from ours, as pairs."""


FORMATS = {
    "llama3": ChatFormat(
        name="llama3",
        begin=("<|begin_of_text|>",),
        open="<|start_header_id|>",
        between="<|end_header_id|>",
        after_role="\n\n",
        close="<|eot_id|>",
    ),
    "qwen2.5": ChatFormat(name="qwen2.5", open="<|im_start|>", after_role="\n", close="<|im_end|>", after_close="\n"),
    "qwen3": ChatFormat(name="qwen3", open="<|im_start|>", after_role="\n", close="<|im_end|>", after_close="\n"),
    "small": ChatFormat(name="small", open="<|turn|>", after_role="\n", close="<|end|>"),
}
"""Frames of the models that the recipes name; `small` is the one of our own small policy. Qwen 3 frames as Qwen 2.5
does; its reasoning block is text that the policy samples, and it stays in the transcript: nothing that was sampled
is ever cut out of what is trained on.
"""


class Encoder:
    """A tokeniser with a chat format. Thread-safe; segments are cached.

    Args:
        tokenizer: `tokenizer.json` of a model directory.

    Raises: ValueError when the tokeniser lacks a marker of the format.
    """

    def __init__(self, tokenizer: Path, chat_format: ChatFormat) -> None:
        self._content = Tokenizer.from_file(str(tokenizer))
        self._content.encode_special_tokens = True
        self.format = chat_format
        markers = {*chat_format.begin, chat_format.open, chat_format.close} | ({chat_format.between} - {""})
        numbers = {marker: self._content.token_to_id(marker) for marker in markers}
        self._special: dict[str, int] = {marker: number for marker, number in numbers.items() if number is not None}
        missing = sorted(markers - self._special.keys())
        if missing:
            raise ValueError(
                f"{tokenizer}: no token {', '.join(missing)}, which the chat format '{chat_format.name}' needs"
            )
        self._cached = lru_cache(maxsize=4096)(self._encode)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the policy's own turn."""
        return (self._special[self.format.close],)

    def text(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no special token comes out of it."""
        return self._cached(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        decoded: str = self._content.decode(list(ids), skip_special_tokens=True)
        return decoded

    def begin(self) -> tuple[int, ...]:
        """What stands before the first turn."""
        return tuple(self._special[marker] for marker in self.format.begin)

    def header(self, role: Role) -> tuple[int, ...]:
        """What opens a turn: for `assistant`, all that stands before the first sampled token."""
        frame = self.format
        name = dict(frame.roles).get(role, role)
        between = (self._special[frame.between],) if frame.between else ()
        if between:
            return (self._special[frame.open], *self.text(name), *between, *self.text(frame.after_role))
        return (self._special[frame.open], *self.text(name + frame.after_role))

    def footer(self, *, closed: bool) -> tuple[int, ...]:
        """What ends a turn: the close marker unless it was sampled, and the text after it."""
        marker = () if closed else (self._special[self.format.close],)
        return (*marker, *self.text(self.format.after_close)) if self.format.after_close else marker

    def message(self, role: Role, text: str) -> tuple[int, ...]:
        """A whole turn that the policy did not sample."""
        return (*self.header(role), *self.text(text), *self.footer(closed=False))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._content.encode(text, add_special_tokens=False).ids)


@dataclass
class Transcript:
    """An episode as the learner will see it. Ids are only ever appended."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def context(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self._append(ids, [0.0] * len(ids), [-1] * len(ids), 0)

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append what the policy sampled. Raises: ValueError when the lists differ in length."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} ids, {len(logprobs)} log-probabilities, {len(versions)} versions")
        self._append(ids, logprobs, versions, 1)

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], trainable: int) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.versions += versions
        self.mask += [trainable] * len(ids)
