"""What the chat players ask for: the JSON objects of the roles, checked as they arrive.

A validator's message is shown to the model in its one repair turn, so each says what to write instead.
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from runtime.task import ServiceEntry
from sandbox.base import PACKAGE_NAME
from sandbox.services import SCRIPT
from sandbox.spec import File

MIN_TRUTH_CHARS = 6
"""Shorter strings occur by chance: they are left to the tests."""

_MAX_FILE_CHARS = 200_000


class Answer(BaseModel):
    """Base of the answers. What a model adds beside the fields asked for is dropped."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _test_module(source: str) -> str:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} is not Python: {error.msg}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(tree)):
        raise ValueError("there is no function whose name begins with test_")
    return source


def _build_steps(text: str) -> str:
    if any(line.lstrip().upper().startswith("FROM ") for line in text.splitlines()):
        raise ValueError("write no FROM line: your instructions follow the base environment's")
    if any(line.lstrip().upper().startswith("VOLUME ") for line in text.splitlines()):
        raise ValueError("write no VOLUME line: what is changed below a volume cannot be tested")
    return text


def _context_path(path: str) -> str:
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("give a plain path relative to the build context, such as files/data.csv")
    return path


TestModule = Annotated[str, Field(max_length=_MAX_FILE_CHARS), AfterValidator(_test_module)]
Score = Annotated[float, Field(ge=1, le=5)]
Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class DraftAnswer(Answer):
    title: Annotated[str, Field(min_length=3, max_length=80)]
    instruction: Text
    truth_notes: str = ""
    truth_strings: tuple[str, ...] = ()
    difficulty: Literal["easy", "medium", "hard"]
    tags: tuple[str, ...] = ()


class ReviewAnswer(Answer):
    environment_complexity: Score
    data_generatability: Score
    verification_determinism: Score
    critique: str = ""


class FileAnswer(Answer):
    path: Annotated[str, AfterValidator(_context_path)]
    content: Annotated[str, Field(max_length=_MAX_FILE_CHARS)]
    encoding: Literal["text", "base64"] = "text"
    executable: bool = False

    @model_validator(mode="after")
    def _decodes(self) -> FileAnswer:
        self.data()
        return self

    def data(self) -> bytes:
        if self.encoding == "text":
            return self.content.encode()
        try:
            return base64.b64decode(self.content, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the content of {self.path} is not base64: {error}") from None

    def file(self) -> File:
        return File(path=self.path, data=self.data(), mode=0o755 if self.executable else 0o644)


class ServiceAnswer(ServiceEntry):
    model_config = ConfigDict(extra="ignore", frozen=True)


class EnvironmentAnswer(Answer):
    dockerfile: Annotated[str, AfterValidator(_build_steps)]
    packages: Annotated[tuple[Annotated[str, Field(pattern=f"^{PACKAGE_NAME}$")], ...], Field(max_length=40)] = ()
    services: Annotated[tuple[ServiceAnswer, ...], Field(max_length=8)] = ()
    files: Annotated[tuple[FileAnswer, ...], Field(max_length=200)] = ()
    initial_tests: TestModule

    @model_validator(mode="after")
    def _distinct_services(self) -> EnvironmentAnswer:
        if len({service.name for service in self.services}) < len(self.services):
            raise ValueError("give each service a name of its own")
        return self

    @model_validator(mode="after")
    def _files_side_by_side(self) -> EnvironmentAnswer:
        """The files, and what is added to them, can lie in one directory."""
        added = ["Dockerfile", *([SCRIPT] if self.services else [])]
        counts = Counter([*added, *(file.path for file in self.files)])
        for path, count in counts.items():
            if count > 1:
                raise ValueError(_taken(path, added))
            if folder := next((str(parent) for parent in PurePosixPath(path).parents if str(parent) in counts), ""):
                raise ValueError(f"{folder} is a file and cannot hold {path}: move one of them")
        return self


def _taken(path: str, added: list[str]) -> str:
    if path in added:
        return f"a file called {path} is added to yours: give yours another path, such as files/{path}"
    return f"give each file a path of its own: {path} occurs more than once"


class FinalTestsAnswer(Answer):
    final_tests: TestModule


class JudgementAnswer(Answer):
    unstated: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
