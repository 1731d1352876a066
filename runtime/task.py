"""A task: one directory in Harbor's format, in memory and on disk.

Invariants:
- Reading and writing keep the promises of `runtime.tree`; all problems of a directory are told at once.
- The same task gives the same bytes, modes and names.
- Keys of `task.toml` that we do not know are kept. Older spellings (`version`, `memory = "2G"`, `allow_internet`) are
  read, and written in today's form.
- The hash covers every file but the certificate, which holds the hash.

Everything here is synchronous file work: call it through a worker thread.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from runtime.errors import TaskInvalid
from runtime.tree import read_tree, write_tree
from sandbox.services import Service
from sandbox.spec import BuildContext, File, Limits, Suite

SCHEMA_VERSION = "1.4"
CERTIFICATE = "certificate.json"
FINAL_TESTS = "tests/test_outputs.py"

_CONFIG = "task.toml"
_INSTRUCTION = "instruction.md"
_TEXTS = (_CONFIG, _INSTRUCTION, "environment/Dockerfile", "tests/test.sh", "solution/solve.sh")
_UNITS = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}


class Table(BaseModel):
    """A table of `task.toml`. The format is someone else's: unknown keys stay."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class TaskTable(Table):
    name: str | None = None
    description: str | None = None
    keywords: list[str] | None = None


class AgentTable(Table):
    timeout_sec: PositiveFloat | None = None


class VerifierTable(Table):
    timeout_sec: PositiveFloat = 600.0
    env: dict[str, str] = {}


class SolutionTable(Table):
    env: dict[str, str] = {}


class EnvironmentTable(Table):
    build_timeout_sec: PositiveFloat = 600.0
    docker_image: str | None = None
    cpus: PositiveFloat | None = None
    memory_mb: PositiveInt | None = None
    storage_mb: PositiveInt | None = None
    network_mode: str | None = None
    workdir: str | None = None
    env: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _migrate(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        table = dict(value)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in table:
                size = _megabytes(table.pop(old))
                table.setdefault(new, size)
        if "allow_internet" in table:
            table.setdefault("network_mode", "public" if table.pop("allow_internet") else "no-network")
        return table


class ServiceEntry(BaseModel):
    """One of the services in `[metadata.termloom]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    command: Annotated[str, Field(min_length=1, max_length=2000)]
    check: Annotated[str, Field(min_length=1, max_length=2000)]
    timeout_s: Annotated[int, Field(ge=1, le=300)] = 30
    interval_s: Annotated[float, Field(gt=0, le=60)] = 0.2

    def service(self) -> Service:
        return Service(**self.model_dump())


_SERVICES = TypeAdapter(tuple[ServiceEntry, ...])


class TaskConfig(Table):
    """`task.toml`."""

    schema_version: str = SCHEMA_VERSION
    task: TaskTable = TaskTable()
    metadata: dict[str, Any] = {}
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    solution: SolutionTable = SolutionTable()
    environment: EnvironmentTable = EnvironmentTable()
    steps: list[dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _migrate(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        table = dict(value)
        written = str(table.pop("schema_version", table.pop("version", SCHEMA_VERSION)))
        if not re.fullmatch(r"[01](\.\d+)*", written):
            raise ValueError(f"schema_version {written!r} is not known (this version reads 0.x and 1.x)")
        return {"schema_version": SCHEMA_VERSION, **table}

    @model_validator(mode="after")
    def _one_step(self) -> Self:
        if self.steps:
            raise ValueError("multi-step tasks ([[steps]]) are not supported")
        return self

    @model_validator(mode="after")
    def _sound_services(self) -> Self:
        self.services()
        return self

    def services(self) -> tuple[Service, ...]:
        """What runs in the environment before anyone works there. Raises: ValueError."""
        ours = self.metadata.get("termloom")
        try:
            entries = _SERVICES.validate_python(ours.get("services", ()) if isinstance(ours, dict) else ())
        except ValidationError as error:
            issues = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ValueError(f"metadata.termloom.services: {issues}") from None
        services = tuple(entry.service() for entry in entries)
        if len({service.name for service in services}) < len(services):
            raise ValueError("metadata.termloom.services: two services have the same name")
        return services

    def toml(self) -> bytes:
        """The file's bytes: only what was set, in the order it was given."""
        return tomli_w.dumps(self.model_dump(exclude_unset=True, exclude_none=True)).encode()


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task directory in memory. `files` are all but task.toml, instruction.md and the certificate."""

    config: TaskConfig
    instruction: str
    files: tuple[File, ...]
    certificate: bytes | None = None

    @property
    def inventory(self) -> tuple[str, ...] | None:
        """Names of all final tests as certified; None for a task that was made elsewhere."""
        ours = self.config.metadata.get("termloom")
        names = ours.get("inventory") if isinstance(ours, dict) else None
        return tuple(str(name) for name in names) if isinstance(names, list) else None

    @property
    def services(self) -> tuple[Service, ...]:
        """What runs in the environment before anyone works there."""
        return self.config.services()

    def folder(self, name: str) -> tuple[File, ...]:
        """The files below one top-level folder, with paths relative to it."""
        prefix = f"{name}/"
        return tuple(
            File(path=f.path.removeprefix(prefix), data=f.data, mode=f.mode)
            for f in self.files
            if f.path.startswith(prefix)
        )

    def text(self, path: str) -> str | None:
        """One file as text, None when there is none."""
        return next((f.data.decode(errors="replace") for f in self.files if f.path == path), None)

    def context(self) -> BuildContext:
        """What the environment is built from. Raises: TaskInvalid when only docker-compose describes it."""
        table = self.config.environment
        dockerfile = self.text("environment/Dockerfile")
        if dockerfile is None and table.docker_image:
            dockerfile = f"FROM {table.docker_image}\n"
        if dockerfile is None:
            raise TaskInvalid(
                self.config.task.name or "task", ["its environment has no Dockerfile and no docker_image"]
            )
        added = [f"ENV {name}={_quoted(value)}" for name, value in table.env.items()]
        added += [f"WORKDIR {table.workdir}"] if table.workdir else []
        if added:
            dockerfile = "\n".join([dockerfile.rstrip(), *added, ""])
        files = tuple(f for f in self.folder("environment") if f.path != "Dockerfile")
        network = table.network_mode not in (None, "no-network")
        return BuildContext(dockerfile=dockerfile, files=files, network=network, timeout_s=table.build_timeout_sec)

    def suite(self) -> Suite:
        """The final tests: by the trusted grader when the inventory is known, else by the task's own tests/test.sh."""
        table = self.config.verifier
        if self.inventory is None:
            return Suite(files=self.folder("tests"), mode="harbor", timeout_s=table.timeout_sec, env=table.env)
        tests = tuple(f for f in self.folder("tests") if f.path == FINAL_TESTS.removeprefix("tests/"))
        return Suite(files=tests, inventory=self.inventory, timeout_s=table.timeout_sec, env=table.env)

    def limits(self) -> Limits:
        """What one sandbox of this task may use; what the task leaves open is our default."""
        table, ours = self.config.environment, Limits()
        return Limits(
            memory_mb=table.memory_mb or ours.memory_mb,
            cpus=table.cpus or ours.cpus,
            disk_mb=table.storage_mb or ours.disk_mb,
        )

    def layout(self) -> tuple[File, ...]:
        """Every file as it lies on disk but the certificate, sorted by path."""
        own = (
            File(path=_CONFIG, data=self.config.toml()),
            File(path=_INSTRUCTION, data=self.instruction.encode()),
        )
        return tuple(sorted((*own, *self.files), key=lambda f: f.path))

    def hash(self) -> str:
        """sha256 over path, mode and content of every file but the certificate."""
        digest = hashlib.sha256()
        for file in self.layout():
            content = hashlib.sha256(file.data).hexdigest()
            digest.update(f"{content} {file.mode & 0o777:04o} {file.path}\n".encode())
        return digest.hexdigest()


def write_task(task: Task, directory: Path) -> None:
    """Write the directory whole, replacing what was there (see `write_tree`).

    Raises: TaskInvalid for files that must not be written; OSError.
    """
    write_tree(_all_files(task), directory)


def read_task(directory: Path) -> Task:
    """Read any Harbor task directory. Raises: TaskInvalid with every problem found."""
    files, problems = read_tree(directory)
    return _assembled(files, problems, str(directory))


def pack_task(task: Task) -> bytes:
    """The whole directory as one value, for a machine that does not have it."""
    return msgspec.msgpack.encode(_all_files(task))


def unpack_task(data: bytes) -> Task:
    """Raises: TaskInvalid."""
    return _assembled({file.path: file for file in msgspec.msgpack.decode(data, type=list[File])}, [], "task")


def _all_files(task: Task) -> tuple[File, ...]:
    certificate = () if task.certificate is None else (File(path=CERTIFICATE, data=task.certificate),)
    return (*task.layout(), *certificate)


def _assembled(files: dict[str, File], problems: list[str], where: str) -> Task:
    problems += _missing(files) + _unusable_texts(files)
    config = _parse_config(files[_CONFIG].data, problems) if _CONFIG in files else None
    if config is not None and not _has_environment(files, config):
        problems.append(
            "environment/ has neither Dockerfile nor docker-compose.yaml, and task.toml names no docker_image"
        )
    if config is None or problems:
        raise TaskInvalid(where, problems)
    instruction = files.pop(_INSTRUCTION).data.decode()
    certificate = files.pop(CERTIFICATE, None)
    del files[_CONFIG]
    return Task(
        config=config,
        instruction=instruction,
        files=tuple(files[path] for path in sorted(files)),
        certificate=certificate.data if certificate else None,
    )


def _missing(files: dict[str, File]) -> list[str]:
    return [f"{path} is missing" for path in (_CONFIG, _INSTRUCTION, "tests/test.sh") if path not in files]


def _unusable_texts(files: dict[str, File]) -> list[str]:
    problems = []
    for path in _TEXTS:
        if path not in files:
            continue
        try:
            if not files[path].data.decode().strip():
                problems.append(f"{path} is empty")
        except UnicodeDecodeError as error:
            problems.append(f"{path} is not UTF-8 (byte {error.start})")
    return problems


def _parse_config(data: bytes, problems: list[str]) -> TaskConfig | None:
    try:
        return TaskConfig.model_validate(tomllib.loads(data.decode()))
    except UnicodeDecodeError:
        return None  # told by _unusable_texts
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{_CONFIG}: {error}")
    except ValidationError as error:
        for issue in error.errors():
            where = ".".join(str(part) for part in issue["loc"])
            problems.append(f"{_CONFIG}: {where}: {issue['msg']}" if where else f"{_CONFIG}: {issue['msg']}")
    return None


def _has_environment(files: dict[str, File], config: TaskConfig) -> bool:
    named = {"environment/Dockerfile", "environment/docker-compose.yaml"}
    return bool(config.environment.docker_image or named & files.keys())


def _quoted(value: str) -> str:
    """A value as ENV takes it literally."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _megabytes(size: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])i?b?", str(size).strip().lower())
    if not match:
        raise ValueError(f"{size!r} is not a size such as '512M' or '2G'")
    return max(1, round(float(match[1]) * _UNITS[match[2]]))
