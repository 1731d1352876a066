"""What a model may not answer is refused with words that tell it what to write."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from generators.chat.answers import DraftAnswer, EnvironmentAnswer, FinalTestsAnswer, ReviewAnswer

TESTS = "def test_inputs() -> None:\n    assert True\n"


@pytest.mark.parametrize(
    ("schema", "content", "told"),
    [
        (EnvironmentAnswer, {"dockerfile": "from debian\n", "initial_tests": TESTS}, "write no FROM line"),
        (EnvironmentAnswer, {"dockerfile": "", "initial_tests": "def x(:"}, "line 1 is not Python"),
        (FinalTestsAnswer, {"final_tests": "def helper() -> None: ..."}, "begins with test_"),
        (
            EnvironmentAnswer,
            {"dockerfile": "", "initial_tests": TESTS, "files": [{"path": "../etc/passwd", "content": ""}]},
            "plain path relative",
        ),
        (
            EnvironmentAnswer,
            {"dockerfile": "", "initial_tests": TESTS, "files": [{"path": "a", "content": "?", "encoding": "base64"}]},
            "is not base64",
        ),
        (EnvironmentAnswer, {"dockerfile": "", "initial_tests": TESTS, "packages": ["a; reboot"]}, "packages.0"),
        (
            EnvironmentAnswer,
            {"dockerfile": "", "initial_tests": TESTS, "services": [{"name": "a", "command": "x", "check": "y"}] * 2},
            "a name of its own",
        ),
        (ReviewAnswer, {"environment_complexity": 9, "data_generatability": 1, "verification_determinism": 1}, "5"),
        (DraftAnswer, {"title": "", "instruction": "x", "difficulty": "easy"}, "at least 3"),
    ],
)
def test_an_unusable_answer_is_refused(schema: type[BaseModel], content: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        schema.model_validate(content)


def test_files_keep_bytes_and_mode() -> None:
    answer = EnvironmentAnswer.model_validate(
        {
            "dockerfile": "USER agent\n",
            "initial_tests": TESTS,
            "files": [
                {"path": "files/run.sh", "content": "echo ä\n", "executable": True},
                {"path": "files/raw", "content": "AAE=", "encoding": "base64"},
            ],
            "remark": "dropped",
        }
    )
    assert [(f.path, f.data, f.mode) for f in (file.file() for file in answer.files)] == [
        ("files/run.sh", "echo ä\n".encode(), 0o755),
        ("files/raw", b"\x00\x01", 0o644),
    ]
