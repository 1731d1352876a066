"""What a model may not answer is refused with words that tell it what to write."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from generators.chat.answers import DraftAnswer, EnvironmentAnswer, FinalTestsAnswer, ReviewAnswer

TESTS = "def test_inputs() -> None:\n    assert True\n"


def holding(*paths: str, services: int = 0) -> dict[str, object]:
    """An environment with these files."""
    files = [{"path": path, "content": ""} for path in paths]
    names = [{"name": f"s{number}", "command": "x", "check": "y"} for number in range(services)]
    return {"dockerfile": "", "initial_tests": TESTS, "files": files, "services": names}


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
        (
            EnvironmentAnswer,
            {"dockerfile": "USER agent\nVOLUME /data\n", "initial_tests": TESTS},
            "write no VOLUME line",
        ),
        (EnvironmentAnswer, holding("a/x", "b", "a/x"), "a path of its own: a/x occurs more than once"),
        (EnvironmentAnswer, holding("Dockerfile"), "another path, such as files/Dockerfile"),
        (EnvironmentAnswer, holding("services.sh", services=1), "another path, such as files/services.sh"),
        (EnvironmentAnswer, holding("a/b/c", "a"), "a is a file and cannot hold a/b/c"),
        (EnvironmentAnswer, holding("Dockerfile/x"), "Dockerfile is a file and cannot hold Dockerfile/x"),
        (ReviewAnswer, {"environment_complexity": 9, "data_generatability": 1, "verification_determinism": 1}, "5"),
        (DraftAnswer, {"title": "", "instruction": "x", "difficulty": "easy"}, "at least 3"),
    ],
)
def test_an_unusable_answer_is_refused(schema: type[BaseModel], content: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        schema.model_validate(content)


def test_files_that_can_lie_side_by_side_are_accepted() -> None:
    paths = ("a/b", "a/c", "ab", "files/Dockerfile", "services.sh")
    answer = EnvironmentAnswer.model_validate(holding(*paths))
    assert tuple(file.path for file in answer.files) == paths


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
