"""The trajectory: everything an episode was, in one record that feeds the viewer, SFT, PPO and the statistics.

Invariants:
- A turn is written once, by the agent loop; synthesis adds its annotations (intent, error type, critic, effect, loss
  weight) with `msgspec.structs.replace`.
- `Turn.text` is the model's answer to the letter and `Turn.observation` what it was shown for it, to the letter: the
  conversation can be rebuilt exactly (`opening`, then text and observation in turn; a turn with a `context` of its own
  begins anew from that).
- Token data, where there is any, is what was sampled; nothing is tokenised again. Its columns have one length.
- Only `verdict` carries a reward; `failure` says how the episode ended, and an infrastructure failure has no verdict.
- A document of a newer schema is refused by name; an older one is migrated by a named function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from runtime.chat.messages import ChatMessage, Finish
from runtime.errors import TrajectoryInvalid
from sandbox.spec import FailureClass, Verdict

SCHEMA_VERSION = 1

Action = Literal["command", "done", "malformed"]
Intent = Literal["correct", "error"]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the trajectory's parts."""


class Tokens(Record, frozen=True, kw_only=True):
    """What the policy sampled in one turn."""

    prompt_ids: tuple[int, ...]
    """The whole context before the turn."""
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampled tokens, under the policy that sampled them."""
    versions: tuple[int, ...]
    """Policy version that produced each token: a turn may span a weight update."""

    def __post_init__(self) -> None:
        lengths = {len(self.completion_ids), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"completion_ids, logprobs and versions differ in length: {sorted(lengths)}")


class CriticVerdict(Record, frozen=True, kw_only=True):
    """What the critic said of one draft of a synthesised step; the last draft is the one that ran."""

    accepted: bool
    critique: str = ""
    rejected_command: str = ""


class Turn(Record, frozen=True, kw_only=True):
    """One turn: the model's answer, what it did, what came of it."""

    index: int
    """From 1."""
    text: str
    action: Action
    context: tuple[ChatMessage, ...] = ()
    """The messages of a fresh context that this turn began; everything before it was out of the agent's sight."""
    finish: Finish = "stop"
    thought: str = ""
    """What stands beside the action: reasoning blocks and prose."""
    reasoning: str = ""
    """Reasoning that the endpoint delivered apart from the text."""
    command: str = ""
    problem: str = ""
    """Why an answer is malformed."""
    observation: str | None = None
    """The message that followed. None when none did: after `done`, or when the sandbox was lost."""
    exit_code: int | None = None
    timed_out: bool = False
    shell_restarted: bool = False
    output_bytes: int = 0
    dropped_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_s: float = 0.0
    """Waiting for the model to answer, queueing excluded."""
    queue_wait_s: float = 0.0
    """Waiting for admission to the model: our own queueing, on nobody's clock."""
    command_s: float = 0.0
    tokens: Tokens | None = None

    intent: Intent | None = None
    """What a synthesised step was meant to be; None where nobody meant anything."""
    error_type: str = ""
    """One of TermiGen's five, for intent `error`."""
    critic: tuple[CriticVerdict, ...] = ()
    effect: str = ""
    """What an injected mistake visibly changed: `exit_code`, `files`, `shell`, `output`."""
    discarded: int = 0
    """Mistakes drawn for this turn and discarded: without effect, or never accepted by the critic."""
    loss_weight: float = 1.0
    """Weight of this turn's answer in a training loss; 0 masks it."""


class Trajectory(Record, frozen=True, kw_only=True):
    """One episode with where it came from and what it was worth."""

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str
    run_id: str
    task: str
    attempt: int = 0
    source: Literal["solve", "rollout", "evaluate", "synthesis", "imported"] = "solve"
    model: str = ""
    agent_version: str = ""
    """The package's version."""
    parser_version: int = 1
    prompt_version: str = ""
    """Name, version and hash of the system prompt."""
    settings: dict[str, Any] = {}
    """The agent settings, as they were."""
    opening: tuple[ChatMessage, ...]
    """System prompt and instruction."""
    turns: tuple[Turn, ...] = ()
    failure: FailureClass
    detail: str = ""
    verdict: Verdict | None = None
    started_at: float = 0.0
    """Seconds since the epoch; 0 when unknown."""

    @property
    def reward(self) -> float | None:
        return self.verdict.reward if self.verdict else None


def segments(trajectory: Trajectory) -> list[Trajectory]:
    """The contexts of an episode, each as a trajectory of its own; one when the agent never began a fresh one."""
    starts = [0, *(i for i, turn in enumerate(trajectory.turns) if turn.context)]
    if len(starts) == 1:
        return [trajectory]
    return [
        msgspec.structs.replace(
            trajectory,
            trajectory_id=f"{trajectory.trajectory_id}#{number}",
            opening=trajectory.turns[start].context or trajectory.opening,
            turns=trajectory.turns[start:end],
        )
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True), start=1)
    ]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Trajectory)

_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Schema version -> the function that makes the next version of it."""


def encode(trajectory: Trajectory) -> bytes:
    """As one line of JSON, the schema version always in it."""
    document = msgspec.to_builtins(trajectory)
    return _encoder.encode({"schema_version": trajectory.schema_version, **document})


def decode(data: bytes, *, source: str = "trajectory") -> Trajectory:
    """Raises: TrajectoryInvalid."""
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        return msgspec.convert(_migrated(document, source), Trajectory)
    except msgspec.MsgspecError as exc:
        raise TrajectoryInvalid(source, [str(exc)]) from exc


def _migrated(document: dict[str, Any], source: str) -> dict[str, Any]:
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise TrajectoryInvalid(source, [f"schema_version is {version!r}, this program reads up to {SCHEMA_VERSION}"])
    while version < SCHEMA_VERSION:
        document, version = _MIGRATIONS[version](document), version + 1
    return document
