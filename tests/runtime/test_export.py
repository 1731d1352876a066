"""Exports: the conversation to the letter, weights on answers alone, nothing without a reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from runtime.atif import from_atif
from runtime.chat.messages import ChatMessage
from runtime.errors import UserError
from runtime.export import (
    replacing,
    require_parquet,
    row_of,
    share_passed,
    worth,
    write_atif,
    write_chat,
    write_dataset,
)
from runtime.trajectory import Trajectory, Turn
from sandbox.spec import FailureClass, GradedTest, Verdict


def trajectory(name: str = "t", *, passed: int = 1, tests: int = 2, reward: float | None = 0.0) -> Trajectory:
    graded = tuple(GradedTest(name=f"t{n}", outcome="passed" if n < passed else "failed") for n in range(tests))
    return Trajectory(
        trajectory_id=name,
        run_id="run",
        task="task",
        agent_version="1",
        opening=(ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="do it")),
        turns=(
            Turn(
                index=1,
                text="<command>ls</command>",
                action="command",
                command="ls",
                observation="exit code: 0",
                loss_weight=0.0,
            ),
            Turn(index=2, text="<action>done</action>", action="done"),
        ),
        failure=FailureClass.OK,
        verdict=Verdict(reward=reward, failure=FailureClass.AGENT_FAIL, tests=graded),
    )


def test_a_conversation_is_what_was_said_with_weights_on_the_answers() -> None:
    assert row_of(trajectory())["messages"] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": "<command>ls</command>", "weight": 0.0},
        {"role": "user", "content": "exit code: 0"},
        {"role": "assistant", "content": "<action>done</action>", "weight": 1.0},
    ]


@pytest.mark.parametrize(
    ("passed", "tests", "reward", "share"),
    [(1, 2, 0.0, 0.5), (2, 2, 1.0, 1.0), (0, 0, 0.25, 0.25), (0, 0, 7.0, 1.0), (2, 2, None, 0.0)],
)
def test_the_share_passed_is_the_reward_where_no_tests_are_told(
    passed: int, tests: int, reward: float | None, share: float
) -> None:
    assert share_passed(trajectory(passed=passed, tests=tests, reward=reward)) == share


def test_without_a_reward_there_is_nothing_to_learn() -> None:
    lost = [trajectory(reward=None), replace(trajectory(), verdict=None)]
    assert list(worth(lost, tau=0.0)) == []


def test_lines_load_in_a_chat_template(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x")),
        chat_template=template,
    )
    assert write_chat([trajectory()], tmp_path / "sft.jsonl") == 1
    (line,) = (tmp_path / "sft.jsonl").read_text().splitlines()
    text = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
    assert text.startswith("[system]rules\n[user]do it\n[assistant]<command>ls</command>\n[user]exit code: 0\n")


def test_text_that_cannot_be_encoded_stops_no_export(tmp_path: Path) -> None:
    odd = replace(trajectory(), opening=(ChatMessage(role="user", content="a\udcffb"),))
    assert write_chat([odd], tmp_path / "sft.jsonl") == 1
    assert json.loads((tmp_path / "sft.jsonl").read_bytes())["messages"][0]["content"] == "a?b"


def test_atif_files_are_read_back_as_the_same_trajectory(tmp_path: Path) -> None:
    write_atif(trajectory(), tmp_path / "atif" / "t.json")
    assert from_atif(json.loads((tmp_path / "atif" / "t.json").read_bytes())) == trajectory()


def test_the_data_set_holds_the_same_rows(tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    assert write_dataset((trajectory(f"t{n}") for n in range(3)), tmp_path) == 3
    rows = parquet.read_table(tmp_path / "data" / "train-00000-of-00001.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["t0", "t1", "t2"]
    assert [message["weight"] for message in rows[0]["messages"]] == [None, None, 0.0, None, 1.0]
    assert rows[0]["share_passed"] == 0.5
    assert "data/train-*" in (tmp_path / "README.md").read_text()


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="extra `data`"):
        require_parquet()


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
