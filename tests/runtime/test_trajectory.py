"""The record and its document."""

import json

import msgspec
import pytest

from runtime.chat.messages import ChatMessage
from runtime.errors import TrajectoryInvalid
from runtime.trajectory import SCHEMA_VERSION, CriticVerdict, Tokens, Trajectory, Turn, decode, encode
from sandbox.spec import FailureClass, GradedTest, Verdict

TOKENS = Tokens(prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(-0.5, -0.25), versions=(7, 8))
FULL = Trajectory(
    trajectory_id="t1",
    run_id="r1",
    task="tasks/00001",
    attempt=2,
    source="synthesis",
    model="m",
    agent_version="0.1.0",
    prompt_version="system@1:abc",
    settings={"max_turns": 16},
    opening=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content="u")),
    turns=(
        Turn(
            index=1,
            text="<think>x</think><command>ls</command>",
            action="command",
            thought="x",
            reasoning="apart",
            command="ls",
            observation="exit code: 2\noutput: (none)",
            exit_code=2,
            timed_out=True,
            shell_restarted=True,
            output_bytes=10,
            dropped_bytes=3,
            prompt_tokens=3,
            completion_tokens=2,
            model_s=0.5,
            queue_wait_s=0.25,
            command_s=1.5,
            tokens=TOKENS,
            intent="error",
            error_type="command_error",
            critic=(
                CriticVerdict(accepted=False, critique="too obvious", rejected_command="rm"),
                CriticVerdict(accepted=True),
            ),
            effect="exit_code",
            loss_weight=0.0,
        ),
        Turn(
            index=2, text="hm", action="malformed", finish="length", problem="no_action", observation="Your answer..."
        ),
        Turn(index=3, text="<action>done</action>", action="done"),
    ),
    failure=FailureClass.OK,
    verdict=Verdict(reward=1.0, failure=FailureClass.OK, tests=(GradedTest(name="test_a", outcome="passed"),)),
    started_at=1.0,
)


def test_it_survives_its_document():
    assert decode(encode(FULL)) == FULL


def test_the_document_is_one_line_and_names_its_schema():
    data = encode(FULL)
    assert b"\n" not in data
    assert json.loads(data)["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, None, "1"])
def test_an_unknown_schema_is_refused_by_name(version):
    document = json.loads(encode(FULL)) | {"schema_version": version}
    with pytest.raises(TrajectoryInvalid, match=f"schema_version is {version!r}"):
        decode(json.dumps(document).encode())


def test_a_broken_document_is_refused_with_its_place():
    document = json.loads(encode(FULL))
    document["turns"][1]["action"] = "sing"
    with pytest.raises(TrajectoryInvalid, match=r"turns\[1\]\.action"):
        decode(json.dumps(document).encode())


def test_token_columns_have_one_length():
    with pytest.raises(ValueError, match="differ in length"):
        msgspec.structs.replace(TOKENS, versions=(7,))


def test_only_a_verdict_has_a_reward():
    assert FULL.reward == 1.0
    assert msgspec.structs.replace(FULL, verdict=None, failure=FailureClass.SANDBOX_LOST).reward is None
