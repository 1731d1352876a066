"""ATIF: what goes out is valid and comes back whole; what is wrong is reported, all of it."""

import copy
import json

import pytest

from runtime.atif import from_atif, to_atif
from runtime.atif_rules import problems
from runtime.errors import TrajectoryInvalid
from sandbox.spec import FailureClass
from tests.runtime.test_trajectory import FULL, TOKENS

FOREIGN = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "terminus-2", "version": "2.0.0", "model_name": "some/model"},
    "steps": [
        {
            "step_id": 1,
            "timestamp": "2026-01-01T00:00:00Z",
            "source": "user",
            "message": [{"type": "text", "text": "Do it."}],
        },
        {
            "step_id": 2,
            "source": "agent",
            "message": "old",
            "is_copied_context": True,
            "metrics": {"prompt_tokens": 99},
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": "looking",
            "tool_calls": [
                {
                    "tool_call_id": "a",
                    "function_name": "bash_command",
                    "arguments": {"keystrokes": "ls", "duration": 1},
                },
                {"tool_call_id": "b", "function_name": "bash_command", "arguments": {"keystrokes": "pwd"}},
            ],
            "observation": {"results": [{"source_call_id": "a", "content": "x"}, {"content": "y"}, {"content": None}]},
            "metrics": {"prompt_tokens": 5, "completion_tokens": 2},
        },
    ],
    "final_metrics": {"total_prompt_tokens": 5, "total_completion_tokens": 2, "total_steps": 3},
}


def exported() -> dict:
    return json.loads(json.dumps(to_atif(FULL)))


def test_an_export_is_valid_and_comes_back_whole():
    document = exported()
    assert problems(document) == []
    assert from_atif(document) == FULL


def test_steps_are_numbered_and_ours_stands_under_extra():
    document = exported()
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent", "agent"]
    step = document["steps"][2]
    assert step["step_id"] == 3
    assert step["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert step["observation"]["results"][0]["source_call_id"] == step["tool_calls"][0]["tool_call_id"]
    assert step["metrics"]["completion_token_ids"] == list(TOKENS.completion_ids)
    assert step["extra"]["termloom"]["intent"] == "error"
    assert document["extra"]["termloom"]["verdict"]["reward"] == 1.0


def test_someone_elses_document_is_read():
    trajectory = from_atif(FOREIGN)
    assert (trajectory.source, trajectory.model, trajectory.failure) == ("imported", "some/model", FailureClass.OK)
    assert trajectory.opening[0].content == "Do it."
    (turn,) = trajectory.turns
    assert (turn.index, turn.command, turn.observation, turn.prompt_tokens) == (1, "ls\npwd", "x\ny", 5)


def without(*path):
    def change(document):
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


def having(value, *path):
    def change(document):
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


BREAKS = [
    (having("ATIF-v2.0", "schema_version"), "schema_version is 'ATIF-v2.0'"),
    (without("agent"), "agent is missing"),
    (without("agent", "version"), "agent.version is missing"),
    (having([], "steps"), "steps is missing or empty"),
    (having(7, "steps", 3, "step_id"), "steps[3]: step_id is 7, expected 4"),
    (having("robot", "steps", 0, "source"), "steps[0]: source is 'robot'"),
    (without("steps", 0, "message"), "steps[0]: message is neither"),
    (having([{"type": "text"}], "steps", 0, "message"), "steps[0]: message is neither"),
    (having("m", "steps", 1, "model_name"), "steps[1]: model_name is for agent steps only"),
    (having("noon", "steps", 0, "timestamp"), "steps[0]: timestamp 'noon' is not ISO 8601"),
    (having(5, "steps", 0, "timestamp"), "steps[0]: timestamp 5 is not ISO 8601"),
    (having(1, "steps", 0, "loss_weight"), "steps[0]: unknown key 'loss_weight'"),
    (having(1, "steps", 2, "extra"), "steps[2]: extra is no object"),
    (
        having("x", "steps", 2, "observation", "results", 0, "source_call_id"),
        "source_call_id 'x' is no call of this step",
    ),
    (having(5, "steps", 2, "observation", "results", 0, "content"), "results[0].content is neither"),
    (having({}, "steps", 2, "observation"), "steps[2]: observation.results is missing"),
    (without("steps", 2, "tool_calls", 0, "arguments"), "tool_calls[0].arguments is missing"),
    (having([0.5], "steps", 2, "metrics", "logprobs"), "2 completion_token_ids but 1 logprobs"),
    (having(-1, "steps", 2, "metrics", "cached_tokens"), "metrics.cached_tokens is -1"),
    (having(99, "final_metrics", "total_steps"), "total_steps is 99, there are 5"),
    (having(99, "final_metrics", "total_prompt_tokens"), "total_prompt_tokens is 99, the steps have 3"),
    (having([{}], "subagent_trajectories"), "subagent_trajectories[0]: agent is missing"),
    (having(5, "steps", 1), "steps[1]: is no object"),
]


@pytest.mark.parametrize(("change", "problem"), BREAKS)
def test_each_rule_is_held(change, problem):
    document = exported()
    change(document)
    assert any(problem in found for found in problems(document)), problems(document)


def test_a_repeated_call_id_is_reported():
    document = exported()
    calls = document["steps"][2]["tool_calls"]
    calls.append(copy.deepcopy(calls[0]))
    assert any("occurs twice" in found for found in problems(document))


def test_all_problems_are_reported_at_once_and_refused_on_import():
    document = exported()
    for change, _ in (BREAKS[1], BREAKS[4], BREAKS[11]):
        change(document)
    with pytest.raises(TrajectoryInvalid) as caught:
        from_atif(document)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"steps": [None, {"tool_calls": [5], "metrics": [], "observation": 1}]}]
)
def test_no_document_breaks_the_validator(document):
    assert problems(document)


def test_our_own_part_gone_wrong_is_reported():
    document = exported()
    document["extra"]["termloom"]["failure"] = "bored"
    with pytest.raises(TrajectoryInvalid, match="failure"):
        from_atif(document)
