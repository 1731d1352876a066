"""Endless Terminals' own form: task.json, test_initial_state.py, test_final_state.py, container.def.

task.json holds the private truth beside the public description, so of it only the description goes on; the file itself
stays in `origin/`, which no image and no suite ever holds. The final tests are run offline, by the image's own pytest.
A Dockerfile beside the definition (`environment/Dockerfile`, as released sets have) is taken as it is; else one is made
from container.def. container.sif, which can be built again, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.errors import TaskInvalid
from runtime.formats.definition import DefinitionUnsupported, copied, from_dockerfile, to_dockerfile
from runtime.formats.format import (
    DOCKERFILE,
    ORIGIN,
    TEST_SH,
    Exported,
    Format,
    Imported,
    at,
    find,
    kept,
    misplaced_script,
    moved,
    plain,
)
from runtime.task import CERTIFICATE, FINAL_TESTS, Task, TaskConfig
from runtime.tree import read_tree
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import File

TASK = "task.json"
DEFINITION = "container.def"
IMAGE = "container.sif"
INITIAL = "test_initial_state.py"
FINAL = "test_final_state.py"

_RENAMED = {INITIAL: f"tests/{INITIAL}", FINAL: FINAL_TESTS}
"""From their places to ours."""
_FOLDERS = ("environment/", f"{ORIGIN}/")
_NEEDED = (TASK, DEFINITION, INITIAL, FINAL)
_TIMEOUT_S = 300.0
"""For the agent and for the tests: what the authors' own conversions say."""
_FETCHES = re.compile(r"\b(apt|apt-get|pip3?|curl|wget|git clone|npm)\b")
_TEST_SH = b"""\
#!/bin/bash
# Runs offline, with the image's own python3 and pytest.
mkdir -p /logs/verifier
python3 -m pytest -q -p no:cacheprovider --rootdir=/tests --noconftest -c /dev/null /tests/test_outputs.py \\
  && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
"""


class _TaskJson(BaseModel):
    """task.json. The format is someone else's: unknown keys stay."""

    model_config = ConfigDict(extra="allow")

    description: str
    name: str | None = None
    termloom: dict[str, Any] = {}
    """The metadata of a task that was exported from here."""


def read(directory: Path) -> Imported:
    files, problems = read_tree(directory, skip=(IMAGE,))
    problems += [f"{name} is missing" for name in _NEEDED if name not in files]
    described = _described(files[TASK].data, problems) if TASK in files else None
    environment = _environment(files, problems) if DEFINITION in files else []
    problems += misplaced_script(files)
    if described is None or problems:
        raise TaskInvalid(str(directory), problems)
    task = Task(
        config=_config(described, directory.resolve().name, environment),
        instruction=described.description,
        files=tuple(sorted((*environment, *_others(files, environment)), key=lambda file: file.path)),
    )
    left_out = (IMAGE,) if (directory / IMAGE).exists() else ()
    return Imported(task=task, left_out=left_out)


def write(task: Task, name: str) -> Exported:
    problems = [
        f"it has no {path}, which the format requires" for path in _RENAMED.values() if find(task.files, path) is None
    ]
    environment = _written_environment(task, problems)
    if problems:
        raise TaskInvalid(name, problems)
    places = {path: place for place, path in _RENAMED.items()}
    files = (
        File(path=TASK, data=_task_json(task, name)),
        *environment,
        *(at(places.get(f.path, f.path), f) for f in task.files if not f.path.startswith(_FOLDERS) and not _made(f)),
        *(f for f in task.folder(ORIGIN) if f.path not in (TASK, DEFINITION, DOCKERFILE)),
    )
    left_out = (CERTIFICATE,) if task.certificate else ()
    return Exported(files=tuple(sorted(files, key=lambda file: file.path)), left_out=left_out)


def _described(data: bytes, problems: list[str]) -> _TaskJson | None:
    try:
        described = _TaskJson.model_validate_json(data)
    except ValidationError as error:
        problems += [f"{TASK}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return None
    if not described.description.strip():
        problems.append(f"{TASK}: its description is empty")
    return described


def _environment(files: dict[str, File], problems: list[str]) -> list[File]:
    """The build context, in its place."""
    if DOCKERFILE in files:
        beside = [file for path, file in files.items() if path.startswith("environment/")]
        return [*beside, at(f"{ORIGIN}/{DOCKERFILE}", files[DOCKERFILE])]
    try:
        text = files[DEFINITION].data.decode()
        dockerfile, sources = to_dockerfile(text, files), copied(text, files)
    except UnicodeDecodeError as error:
        problems.append(f"{DEFINITION} is not UTF-8 (byte {error.start})")
        return []
    except DefinitionUnsupported as unsupported:
        problems.append(f"{DEFINITION}: {unsupported}")
        return []
    problems += [f"{DEFINITION}: its %files copies {path}" for path in _NEEDED if path in sources]
    used = moved((file for path, file in files.items() if path in sources), "environment")
    return [File(path=DOCKERFILE, data=dockerfile.encode()), *used]


def _others(files: dict[str, File], environment: list[File]) -> Iterator[File]:
    taken = {file.path for file in environment}
    for path, file in files.items():
        if path in _RENAMED:
            yield at(_RENAMED[path], file)
        elif path.startswith(("tests/", "solution/")):
            yield file
        elif path not in taken and f"environment/{path}" not in taken:
            yield at(f"{ORIGIN}/{path}", file)
    if TEST_SH not in files:
        yield File(path=TEST_SH, data=_TEST_SH, mode=0o755)


def _config(described: _TaskJson, name: str, environment: list[File]) -> TaskConfig:
    dockerfile = next(file.data.decode(errors="replace") for file in environment if file.path == DOCKERFILE)
    fetches = _FETCHES.search(dockerfile.removeprefix(BASE_DOCKERFILE))
    return TaskConfig.model_validate(
        {
            "task": {"name": f"endless-terminals/{name}"},
            "metadata": plain(described.termloom),
            "agent": {"timeout_sec": _TIMEOUT_S},
            "verifier": {"timeout_sec": _TIMEOUT_S},
            "environment": {"network_mode": "public" if fetches else "no-network"},
        }
    )


def _written_environment(task: Task, problems: list[str]) -> list[File]:
    """Definition and what it copies: as they came when the Dockerfile is still the same, else made from it."""
    try:
        context = task.context()
        definition = kept(task, DEFINITION)
        if definition is None or context.dockerfile != _original_dockerfile(task, definition):
            made = from_dockerfile(context, folder="environment")
            definition = File(path=DEFINITION, data=made.encode())
        elif kept(task, DOCKERFILE) is None:
            return [definition, *context.files]
    except TaskInvalid as invalid:
        problems += invalid.problems
        return []
    except DefinitionUnsupported as unsupported:
        problems.append(f"no definition can be made of its Dockerfile: {unsupported}")
        return []
    dockerfile = File(path=DOCKERFILE, data=context.dockerfile.encode())
    return [definition, dockerfile, *moved(context.files, "environment")]


def _original_dockerfile(task: Task, definition: File) -> str:
    if (beside := kept(task, DOCKERFILE)) is not None:
        return beside.data.decode(errors="replace")
    files = [file.path for file in (*task.folder("environment"), *task.folder(ORIGIN))]
    return to_dockerfile(definition.data.decode(), files)


def _task_json(task: Task, name: str) -> bytes:
    """As it came when the task still says the same, else with what changed."""
    origin = kept(task, TASK)
    if origin is None:
        return _encode(
            {
                "name": name,
                "description": task.instruction,
                "truth": _certified_truth(task.certificate),
                "termloom": task.config.metadata,
            }
        )
    described = _TaskJson.model_validate_json(origin.data)
    if (described.description, plain(described.termloom)) == (task.instruction, task.config.metadata):
        return origin.data
    ours = {"termloom": task.config.metadata} if task.config.metadata else {}
    return _encode(json.loads(origin.data) | {"description": task.instruction} | ours)


def _certified_truth(certificate: bytes | None) -> str:
    """The literal answers that a certificate lists, one a line."""
    try:
        truth = json.loads(certificate or b"")["checks"]["truth"]
    except (ValueError, TypeError, KeyError):
        return ""  # none, or someone else's file of that name
    return "\n".join(map(str, truth))


def _encode(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n").encode()


def _made(file: File) -> bool:
    """Whether the import wrote it."""
    return file.path == TEST_SH and file.data == _TEST_SH


FORMAT = Format(name="endless-terminals", mark=TASK, read=read, write=write)
