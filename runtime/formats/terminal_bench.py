"""Terminal-Bench 1: task.yaml, docker-compose.yaml, Dockerfile, run-tests.sh, solution.sh or .yaml, tests/.

As a task, `tests/test.sh` runs the untouched `run-tests.sh` and turns its exit code into the reward: Terminal-Bench's
own verdict came from a parser of pytest's output in its harness, and pytest's exit code says the same. Unknown keys of
task.yaml become metadata. The build context is the directory without task.yaml, tests and solution.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from runtime.errors import TaskInvalid
from runtime.formats import compose_file
from runtime.formats.format import (
    DOCKERFILE,
    ORIGIN,
    SOLVE_SH,
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
from runtime.formats.yaml_text import YamlInvalid, dump, load_list, load_mapping
from runtime.task import CERTIFICATE, FINAL_TESTS, Task, TaskConfig
from runtime.tree import read_tree
from sandbox.spec import File

TASK = "task.yaml"
COMPOSE = "docker-compose.yaml"
RUN_TESTS = "run-tests.sh"
SOLUTIONS = ("solution.sh", "solution.yaml")

_RESERVED = frozenset({TASK, COMPOSE, RUN_TESTS, *SOLUTIONS})
_TEST_SH = b"""\
#!/bin/bash
# The exit code of the task's own run-tests.sh is the reward.
export TEST_DIR=/tests
mkdir -p /logs/verifier
bash /tests/run-tests.sh && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
"""
_RUN_TESTS = b"""\
#!/bin/bash
# Runs offline, with the image's own python3 and pytest; -rA prints the summary that the harness reads.
python3 -m pytest -rA -p no:cacheprovider --rootdir="$TEST_DIR" --noconftest -c /dev/null "$TEST_DIR/test_outputs.py"
"""
_COMPOSE = b"""\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""


class _Description(BaseModel):
    model_config = ConfigDict(extra="allow")

    key: str
    description: str


class _TaskYaml(BaseModel):
    """task.yaml. The format is someone else's: unknown keys stay."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    instruction: str | None = None
    descriptions: list[_Description] = []
    """The older way to give several instructions; `base` is the one that counts."""
    max_agent_timeout_sec: PositiveFloat = 360.0
    max_test_timeout_sec: PositiveFloat = 60.0

    def text(self) -> str:
        based = [entry.description for entry in self.descriptions if entry.key == "base"]
        return self.instruction or next(iter(based), "")

    def metadata(self) -> dict[str, Any]:
        return {str(key): plain(value) for key, value in (self.model_extra or {}).items() if value is not None}


def read(directory: Path) -> Imported:
    files, problems = read_tree(directory)
    problems += [f"{name} is missing" for name in (TASK, COMPOSE, "Dockerfile", RUN_TESTS) if name not in files]
    problems += misplaced_script(files)
    described = _described(files[TASK].data, problems) if TASK in files else None
    solution = _solution(files, problems)
    if described is None or problems:
        raise TaskInvalid(str(directory), problems)
    task = Task(
        config=_config(described, directory.resolve().name, compose_file.client_environment(files[COMPOSE].data)),
        instruction=described.text(),
        files=tuple(sorted((*_placed(files), *solution), key=lambda file: file.path)),
    )
    return Imported(task=task)


def write(task: Task, name: str) -> Exported:
    problems = list[str]()
    problems += [
        f"environment/{file.path} has a meaning of its own there"
        for file in task.folder("environment")
        if file.path in _RESERVED or file.path.startswith("tests/")
    ]
    if find(task.files, DOCKERFILE) is None and not task.config.environment.docker_image:
        problems.append("it has neither environment/Dockerfile nor docker_image")
    run_tests = find(task.files, f"tests/{RUN_TESTS}")
    if run_tests is None and find(task.files, FINAL_TESTS) is None:
        problems.append("its verdict comes from tests/test.sh alone, and Terminal-Bench reads pytest's report")
    if problems:
        raise TaskInvalid(name, problems)
    files = (
        File(path=TASK, data=_task_yaml(task)),
        at(RUN_TESTS, run_tests) if run_tests else File(path=RUN_TESTS, data=_RUN_TESTS, mode=0o755),
        *_environment(task),
        *(f for f in moved(task.folder("tests"), "tests") if f.path != f"tests/{RUN_TESTS}" and f.data != _TEST_SH),
        *_written_solution(task),
    )
    return Exported(files=tuple(sorted(files, key=lambda file: file.path)), left_out=_left_out(task))


def _environment(task: Task) -> list[File]:
    """Compose file, Dockerfile and what it copies. Variables and directory of task.toml go into the Dockerfile."""
    if (compose := kept(task, COMPOSE)) is not None:
        return [compose, *task.folder("environment")]
    context = task.context()
    dockerfile = File(path="Dockerfile", data=context.dockerfile.encode())
    return [File(path=COMPOSE, data=_COMPOSE), dockerfile, *context.files]


def _described(data: bytes, problems: list[str]) -> _TaskYaml | None:
    try:
        described = _TaskYaml.model_validate(load_mapping(data))
    except YamlInvalid as invalid:
        problems.append(f"{TASK}: {invalid}")
        return None
    except ValidationError as error:
        problems += [f"{TASK}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return None
    if not described.text().strip():
        problems.append(f"{TASK}: it has no instruction")
    return described


def _config(described: _TaskYaml, name: str, env: dict[str, str]) -> TaskConfig:
    environment: dict[str, Any] = {"network_mode": "public"} | ({"env": env} if env else {})
    return TaskConfig.model_validate(
        {
            "task": {"name": f"terminal-bench/{name}"},
            "metadata": described.metadata(),
            "agent": {"timeout_sec": described.max_agent_timeout_sec},
            "verifier": {"timeout_sec": described.max_test_timeout_sec},
            "environment": environment,
        }
    )


def _placed(files: dict[str, File]) -> list[File]:
    placed = [at(f"{ORIGIN}/{path}", files[path]) for path in (TASK, COMPOSE)]
    placed.append(at(f"tests/{RUN_TESTS}", files[RUN_TESTS]))
    if TEST_SH not in files:
        placed.append(File(path=TEST_SH, data=_TEST_SH, mode=0o755))
    for path, file in files.items():
        if path not in _RESERVED:
            placed.append(file if path.startswith("tests/") else at(f"environment/{path}", file))
    return placed


def _solution(files: dict[str, File], problems: list[str]) -> list[File]:
    if (script := files.get("solution.sh")) is not None:
        return [at(SOLVE_SH, script), *moved(_present(files, "solution.yaml"), ORIGIN)]
    if (listed := files.get("solution.yaml")) is None:
        return []
    try:
        return [File(path=SOLVE_SH, data=_script(listed.data), mode=0o755), at(f"{ORIGIN}/{listed.path}", listed)]
    except YamlInvalid as invalid:
        problems.append(f"solution.yaml: {invalid}")
        return []


def _present(files: dict[str, File], path: str) -> list[File]:
    return [files[path]] if path in files else []


def _script(listed: bytes) -> bytes:
    """The commands of a solution.yaml, one after the other. Raises: YamlInvalid."""
    commands = [entry.get("command") if isinstance(entry, dict) else None for entry in load_list(listed)]
    if not all(isinstance(command, str) for command in commands):
        raise YamlInvalid("not a list of commands")
    return "".join(["#!/bin/bash\n", *(f"{str(command).rstrip()}\n" for command in commands)]).encode()


def _written_solution(task: Task) -> list[File]:
    script, listed = find(task.files, SOLVE_SH), kept(task, "solution.yaml")
    if script is None:
        return []
    if listed is not None and script.data == _script(listed.data):
        return [listed]
    return [at("solution.sh", script), *([listed] if listed else [])]


def _task_yaml(task: Task) -> bytes:
    """As it came when the task still says the same, else anew."""
    current = {
        "instruction": task.instruction,
        **task.config.metadata,
        "max_agent_timeout_sec": task.config.agent.timeout_sec or 360.0,
        "max_test_timeout_sec": task.config.verifier.timeout_sec,
    }
    origin = kept(task, TASK)
    if origin is None:
        return dump({"parser_name": "pytest"} | current)
    loaded = load_mapping(origin.data)
    described = _TaskYaml.model_validate(loaded)
    before = {
        "instruction": described.text(),
        **described.metadata(),
        "max_agent_timeout_sec": described.max_agent_timeout_sec,
        "max_test_timeout_sec": described.max_test_timeout_sec,
    }
    if before == current:
        return origin.data
    unchanged = {key: value for key, value in loaded.items() if key not in before and key != "descriptions"}
    return dump(unchanged | current)


def _left_out(task: Task) -> tuple[str, ...]:
    ours = ("environment/", "tests/", f"{ORIGIN}/")
    left = [file.path for file in task.files if not file.path.startswith(ours) and file.path != SOLVE_SH]
    return (*left, *([CERTIFICATE] if task.certificate else []))


FORMAT = Format(name="terminal-bench", mark=TASK, read=read, write=write)
