"""Trajectories in the Agent Trajectory Interchange Format, version 1.7: export, validation, import.

Invariants:
- An exported document is valid ATIF: what the format has no field for stands under `extra.termloom`, at the root and
  at each agent step. Exporting and importing gives the same trajectory.
- `problems` reports everything that is wrong with a document at once, each with its place.
- Import of someone else's document keeps what a trajectory has a place for; steps marked as copied context are not
  turns and count in no total.

How a turn becomes a step: the answer is `message`; a command is a tool call of `bash`, the keystrokes of a Terminus-2
answer are one call of `bash_command` each, as that agent writes them; what the agent was shown is an observation
result, without a call when it corrects a malformed answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from runtime.agent.terminus import Typed, read_answer
from runtime.atif_rules import problems
from runtime.chat.messages import ChatMessage
from runtime.errors import TrajectoryInvalid
from runtime.trajectory import Trajectory, Turn
from sandbox.spec import FailureClass

ATIF_VERSION = "ATIF-v1.7"
NAMESPACE = "termloom"

_ROOT_FIELDS = frozenset({"trajectory_id", "run_id", "model", "agent_version", "opening", "turns"})
"""What ATIF itself holds of a trajectory."""
_STEP_FIELDS = frozenset({"index", "text", "reasoning", "command", "observation", "prompt_tokens", "completion_tokens"})
"""What ATIF itself holds of a turn."""


def to_atif(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as an ATIF document, ready for JSON."""
    opening = [
        {"step_id": number, "source": message.role, "message": message.content}
        for number, message in enumerate(trajectory.opening, start=1)
    ]
    typed = trajectory.settings.get("kind") == "terminus-2"
    steps = [_step(turn, len(opening) + number, typed=typed) for number, turn in enumerate(trajectory.turns, start=1)]
    agent = {"name": NAMESPACE, "version": trajectory.agent_version or "0"}
    if trajectory.model:
        agent["model_name"] = trajectory.model
    return {
        "schema_version": ATIF_VERSION,
        "session_id": trajectory.run_id,
        "trajectory_id": trajectory.trajectory_id,
        "agent": agent,
        "steps": opening + steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.prompt_tokens for turn in trajectory.turns),
            "total_completion_tokens": sum(turn.completion_tokens for turn in trajectory.turns),
            "total_steps": len(opening) + len(steps),
        },
        "extra": {NAMESPACE: {"source": trajectory.source, **_without(trajectory, _ROOT_FIELDS)}},
    }


def _step(turn: Turn, number: int, *, typed: bool) -> dict[str, Any]:
    calls = _keystrokes(turn, number) if typed else _bash(turn, number)
    step: dict[str, Any] = {
        "step_id": number,
        "source": "agent",
        "message": turn.text,
        "metrics": _metrics(turn),
        "llm_call_count": 1,
        "extra": {NAMESPACE: _without(turn, _STEP_FIELDS | {"tokens"})},
    }
    if turn.reasoning:
        step["reasoning_content"] = turn.reasoning
    if typed:  # the text that was typed cannot be told from named keys by others
        step["extra"][NAMESPACE]["command"] = turn.command
    if calls:
        step["tool_calls"] = calls
    if turn.observation is not None:
        source = {"source_call_id": calls[-1]["tool_call_id"]} if calls else {}
        step["observation"] = {"results": [{**source, "content": turn.observation}]}
    return step


def _bash(turn: Turn, number: int) -> list[dict[str, Any]]:
    if turn.action != "command":
        return []
    return [{"tool_call_id": f"call_{number}", "function_name": "bash", "arguments": {"command": turn.command}}]


def _keystrokes(turn: Turn, number: int) -> list[dict[str, Any]]:
    answer = read_answer(turn.text)
    keys = answer.keys if isinstance(answer, Typed) else ()
    return [
        {"tool_call_id": f"call_{number}_{place}", "function_name": "bash_command", "arguments": entry.model_dump()}
        for place, entry in enumerate(keys, start=1)
    ]


def _metrics(turn: Turn) -> dict[str, Any]:
    metrics: dict[str, Any] = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.completion_tokens}
    if turn.tokens:
        metrics["prompt_token_ids"] = list(turn.tokens.prompt_ids)
        metrics["completion_token_ids"] = list(turn.tokens.completion_ids)
        metrics["logprobs"] = list(turn.tokens.logprobs)
        metrics["extra"] = {NAMESPACE: {"policy_versions": list(turn.tokens.versions)}}
    return metrics


def _without(record: Trajectory | Turn, fields: frozenset[str]) -> dict[str, Any]:
    document = msgspec.to_builtins(record)
    return {name: value for name, value in document.items() if name not in fields}


def from_atif(document: Mapping[str, Any], *, source: str = "ATIF document") -> Trajectory:
    """Raises: TrajectoryInvalid with every problem."""
    found = problems(document)
    if found:
        raise TrajectoryInvalid(source, found)
    steps = [step for step in document["steps"] if not step.get("is_copied_context")]
    agent = document["agent"]
    own = _own(document)
    fields = {
        "source": "imported",
        "task": "",
        "failure": FailureClass.OK,
        **own,
        "trajectory_id": document.get("trajectory_id") or document.get("session_id") or "",
        "run_id": document.get("session_id") or "",
        "model": agent.get("model_name") or "",
        "agent_version": agent["version"],
        "opening": list(_opening(steps)),
        "turns": list(_turns(steps)),
    }
    try:
        return msgspec.convert(fields, Trajectory)
    except msgspec.ValidationError as exc:
        raise TrajectoryInvalid(source, [f"extra.{NAMESPACE}: {exc}"]) from exc


def _own(part: Mapping[str, Any]) -> dict[str, Any]:
    own = (part.get("extra") or {}).get(NAMESPACE)
    return dict(own) if isinstance(own, Mapping) else {}


def _opening(steps: list[dict[str, Any]]) -> Iterator[ChatMessage]:
    """What was said before the agent's first step."""
    for step in steps:
        if step["source"] == "agent":
            return
        yield ChatMessage(role=step["source"], content=_text(step["message"]))


def _turns(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    agent_steps = [step for step in steps if step["source"] == "agent"]
    for index, step in enumerate(agent_steps, start=1):
        metrics = step.get("metrics") or {}
        command = _command(step)
        yield {
            "action": "malformed" if command is None else "command",
            "command": command or "",
            **_own(step),
            "index": index,
            "text": _text(step["message"]),
            "reasoning": step.get("reasoning_content") or "",
            "observation": _observation(step),
            "prompt_tokens": metrics.get("prompt_tokens") or 0,
            "completion_tokens": metrics.get("completion_tokens") or 0,
            "tokens": _tokens(metrics),
        }


def _command(step: Mapping[str, Any]) -> str | None:
    """What the step's calls typed, in whichever argument the agent's tool takes it."""
    typed = [
        text
        for call in step.get("tool_calls") or []
        for name in ("command", "cmd", "keystrokes")
        if isinstance(text := call["arguments"].get(name), str)
    ]
    return "\n".join(typed) if typed else None


def _observation(step: Mapping[str, Any]) -> str | None:
    results = (step.get("observation") or {}).get("results") or []
    texts = [_text(result["content"]) for result in results if result.get("content") is not None]
    return "\n".join(texts) if texts else None


def _tokens(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Token data counts only when it is complete: ids and log-probabilities both."""
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if not ids or not logprobs:
        return None
    return {
        "prompt_ids": metrics.get("prompt_token_ids") or [],
        "completion_ids": ids,
        "logprobs": logprobs,
        "versions": _own(metrics).get("policy_versions") or [0] * len(ids),
    }


def _text(content: str | list[dict[str, Any]]) -> str:
    """Message content is text, or a list of parts of which the text parts count."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
