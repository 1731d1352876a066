"""The rules of ATIF 1.7, as a validator that reports every violation with its place.

Rules: required fields and types; steps numbered 1..n; source is system, user or agent; agent-only fields stand on no
other step; call ids are unique in a step and an observation names only calls of its own step; ids, log-probabilities
and counts agree; totals agree with the steps that are not copied context; no key that the format does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_ROOT = frozenset(
    {
        "schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics",
        "continued_trajectory_ref", "subagent_trajectories", "extra",
    }
)  # fmt: skip
_AGENT = frozenset({"name", "version", "model_name", "tool_definitions", "extra"})
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics", "llm_call_count")
_STEP = frozenset({"step_id", "timestamp", "source", "message", "observation", "is_copied_context", "extra"})
_CALL = frozenset({"tool_call_id", "function_name", "arguments", "extra"})
_RESULT = frozenset({"source_call_id", "content", "subagent_trajectory_ref", "extra"})
_METRICS = frozenset(
    {
        "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids",
        "logprobs", "extra",
    }
)  # fmt: skip

VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(8))
"""Older minor versions are subsets of 1.7."""


def problems(document: Any) -> list[str]:
    """Everything that is wrong with the document; empty when it is valid."""
    if not isinstance(document, Mapping):
        return ["the document is no object"]
    found = list(_root(document))
    steps = document.get("steps")
    if isinstance(steps, list):
        for number, step in enumerate(steps, start=1):
            found += [f"steps[{number - 1}]: {problem}" for problem in _step(step, number)]
        found += _totals(document, [s for s in steps if isinstance(s, Mapping)])
    children = document.get("subagent_trajectories") or []
    for index, child in enumerate(children if isinstance(children, list) else []):
        found += [f"subagent_trajectories[{index}]: {problem}" for problem in problems(child)]
    return found


def _root(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("schema_version") not in VERSIONS:
        yield f"schema_version is {document.get('schema_version')!r}, expected up to {VERSIONS[-1]}"
    yield from _unknown(document, _ROOT)
    agent = document.get("agent")
    if not isinstance(agent, Mapping):
        yield "agent is missing"
    else:
        yield from (f"agent.{name} is missing" for name in ("name", "version") if not isinstance(agent.get(name), str))
        yield from (f"agent: {problem}" for problem in _unknown(agent, _AGENT))
    if not isinstance(document.get("steps"), list) or not document["steps"]:
        yield "steps is missing or empty"


def _step(step: Any, number: int) -> Iterator[str]:
    if not isinstance(step, Mapping):
        yield "is no object"
        return
    if step.get("step_id") != number:
        yield f"step_id is {step.get('step_id')!r}, expected {number}"
    if step.get("source") not in ("system", "user", "agent"):
        yield f"source is {step.get('source')!r}, expected system, user or agent"
    if not _is_content(step.get("message")):
        yield "message is neither text nor a list of parts"
    if step.get("source") != "agent":
        yield from (f"{name} is for agent steps only" for name in _AGENT_ONLY if step.get(name) is not None)
    if "timestamp" in step and not _is_time(step["timestamp"]):
        yield f"timestamp {step['timestamp']!r} is not ISO 8601"
    yield from _unknown(step, _STEP.union(_AGENT_ONLY))
    calls = list(_objects(step.get("tool_calls")))
    yield from _calls(calls)
    yield from _observation(step.get("observation"), [call.get("tool_call_id") for call in calls])
    yield from _metrics(step.get("metrics"))


def _calls(calls: list[Mapping[str, Any]]) -> Iterator[str]:
    ids = [name for call in calls if isinstance(name := call.get("tool_call_id"), str)]
    yield from (f"tool_call_id {name!r} occurs twice" for name in sorted({i for i in ids if ids.count(i) > 1}))
    for index, call in enumerate(calls):
        place = f"tool_calls[{index}]"
        for name, kind in (("tool_call_id", str), ("function_name", str), ("arguments", Mapping)):
            if not isinstance(call.get(name), kind):
                yield f"{place}.{name} is missing"
        yield from (f"{place}: {problem}" for problem in _unknown(call, _CALL))


def _observation(observation: Any, call_ids: list[Any]) -> Iterator[str]:
    if observation is None:
        return
    if not isinstance(observation, Mapping) or not isinstance(observation.get("results"), list):
        yield "observation.results is missing"
        return
    for index, result in enumerate(_objects(observation["results"])):
        place = f"observation.results[{index}]"
        source = result.get("source_call_id")
        if source is not None and source not in call_ids:
            yield f"{place}.source_call_id {source!r} is no call of this step"
        if not _is_content(result.get("content", "")) and result["content"] is not None:
            yield f"{place}.content is neither text nor a list of parts"
        yield from (f"{place}: {problem}" for problem in _unknown(result, _RESULT))


def _metrics(metrics: Any) -> Iterator[str]:
    if not isinstance(metrics, Mapping):
        if metrics is not None:
            yield "metrics is no object"
        return
    yield from (f"metrics: {problem}" for problem in _unknown(metrics, _METRICS))
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if isinstance(ids, list) and isinstance(logprobs, list) and len(ids) != len(logprobs):
        yield f"metrics: {len(ids)} completion_token_ids but {len(logprobs)} logprobs"
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        value = metrics.get(name)
        if value is not None and (not isinstance(value, int) or value < 0):
            yield f"metrics.{name} is {value!r}, expected a count"


def _totals(document: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> Iterator[str]:
    totals = document.get("final_metrics")
    if not isinstance(totals, Mapping):
        return
    if totals.get("total_steps") not in (None, len(steps)):
        yield f"final_metrics.total_steps is {totals['total_steps']!r}, there are {len(steps)}"
    if document.get("subagent_trajectories") or document.get("continued_trajectory_ref"):
        return  # totals then cover more than this document's own steps
    for name in ("prompt_tokens", "completion_tokens"):
        counts = [
            step["metrics"].get(name)
            for step in steps
            if isinstance(step.get("metrics"), Mapping) and not step.get("is_copied_context")
        ]
        known = [count for count in counts if isinstance(count, int)]
        total = totals.get(f"total_{name}")
        if isinstance(total, int) and known and total != sum(known):
            yield f"final_metrics.total_{name} is {total}, the steps have {sum(known)}"


def _unknown(part: Mapping[str, Any], known: frozenset[str]) -> Iterator[str]:
    yield from (f"unknown key {name!r}: the place for it is extra" for name in sorted(set(part) - known))
    if not isinstance(part.get("extra", {}), Mapping | None):
        yield "extra is no object"


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value or () if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _is_content(value: Any) -> bool:
    """Text, or parts each of which has a type, and text where that is its type."""
    if not isinstance(value, list):
        return isinstance(value, str)
    parts = [part for part in value if isinstance(part, Mapping) and isinstance(part.get("type"), str)]
    return len(parts) == len(value) and all(isinstance(p.get("text"), str) for p in parts if p["type"] == "text")


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return True
