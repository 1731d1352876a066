"""A task: one directory in Harbor's format, in memory and on disk.

Invariants:
- Reading never leaves the directory: a symbolic link that points out of it, loops, or names a directory is a problem,
  and special files are never opened. All problems of a directory are told at once.
- Writing is atomic and deterministic: the same task gives the same bytes, modes and names, and a reader sees the whole
  directory or none of it.
- Keys of `task.toml` that we do not know are kept. Older spellings (`version`, `memory = "2G"`, `allow_internet`) are
  read, and written in today's form.
- The hash covers every file but the certificate, which holds the hash.

Everything here is synchronous file work: call it through a worker thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from runtime.errors import TaskInvalid
from sandbox.spec import BuildContext, File, Limits, Suite

SCHEMA_VERSION = "1.4"
CERTIFICATE = "certificate.json"
FINAL_TESTS = "tests/test_outputs.py"
MAX_FILE_BYTES = 16 << 20
MAX_TASK_BYTES = 64 << 20
MAX_FILES = 5000
MAX_DEPTH = 64

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
        if table.workdir:
            dockerfile = f"{dockerfile.rstrip()}\nWORKDIR {table.workdir}\n"
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
    """Write the directory whole: a neighbour is filled, flushed and renamed into place, replacing what was there.

    Raises: TaskInvalid for files that must not be written; OSError.
    """
    files = task.layout()
    problems = [f"{f.path!r}: {problem}" for f in files if (problem := _path_problem(f.path))]
    problems += [f"{path!r} occurs twice" for path, count in Counter(f.path for f in files).items() if count > 1]
    if problems:
        raise TaskInvalid(str(directory), problems)
    if task.certificate is not None:
        files = (*files, File(path=CERTIFICATE, data=task.certificate))
    fresh, old = (directory.with_name(f".{directory.name}.{kind}") for kind in ("partial", "old"))
    directory.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(mode=0o755)
    for file in files:
        _write_file(fresh, file)
    for folder, _, _ in os.walk(fresh):
        Path(folder).chmod(0o755)
        _sync_directory(Path(folder))
    if directory.exists():
        directory.rename(old)
    fresh.rename(directory)
    _sync_directory(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_task(directory: Path) -> Task:
    """Read any Harbor task directory. Raises: TaskInvalid with every problem found."""
    reader = _Reader(directory)
    files = {file.path: file for file in reader.files()}
    problems = reader.problems
    if not directory.is_dir():
        raise TaskInvalid(str(directory), problems or ["not a directory"])
    problems += _missing(files) + _unusable_texts(files)
    config = _parse_config(files[_CONFIG].data, problems) if _CONFIG in files else None
    if config is not None and not _has_environment(files, config):
        problems.append(
            "environment/ has neither Dockerfile nor docker-compose.yaml, and task.toml names no docker_image"
        )
    if config is None or problems:
        raise TaskInvalid(str(directory), problems)
    instruction = files.pop(_INSTRUCTION).data.decode()
    certificate = files.pop(CERTIFICATE, None)
    del files[_CONFIG]
    return Task(
        config=config,
        instruction=instruction,
        files=tuple(files[path] for path in sorted(files)),
        certificate=certificate.data if certificate else None,
    )


class _Reader:
    """Walks a directory without leaving it."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[str] = []
        self._root = directory
        self._real = directory.resolve()
        self._bytes = 0
        self._count = 0

    def files(self) -> Iterator[File]:
        if self._root.is_dir():
            yield from self._walk(PurePosixPath())

    def _walk(self, folder: PurePosixPath) -> Iterator[File]:
        if len(folder.parts) > MAX_DEPTH:
            self.problems.append(f"{folder}: more than {MAX_DEPTH} directories deep")
            return
        try:
            entries = sorted(os.scandir(self._root / folder), key=lambda entry: entry.name)
        except OSError as error:
            self.problems.append(f"{folder}: {error.strerror}")
            return
        for entry in entries:
            if self._count > MAX_FILES:
                return
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            elif (file := self._read(path)) is not None:
                yield file

    def _read(self, path: PurePosixPath) -> File | None:
        self._count += 1
        if self._count > MAX_FILES:
            self.problems.append(f"more than {MAX_FILES} files")
            return None
        try:
            return self._open(path)
        except UnicodeEncodeError:
            self.problems.append(f"{str(path)!r}: the name is not UTF-8")
        except OSError as error:
            loop = error.errno == errno.ELOOP
            self.problems.append(f"{path}: {'symbolic links in a loop' if loop else error.strerror or error}")
        except _RefusedError as refused:
            self.problems.append(f"{path}: {refused}")
        return None

    def _open(self, path: PurePosixPath) -> File:
        str(path).encode()
        target = self._real / path
        if target.is_symlink():
            target = Path(os.path.realpath(target, strict=True))
        if not target.is_relative_to(self._real):
            raise _RefusedError("a symbolic link out of the task directory")
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as handle:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise _RefusedError("not a regular file")
            if info.st_size > MAX_FILE_BYTES:
                raise _RefusedError(f"{info.st_size} bytes, more than {MAX_FILE_BYTES}")
            self._bytes += info.st_size
            if self._bytes > MAX_TASK_BYTES:
                raise _RefusedError(f"the task holds more than {MAX_TASK_BYTES} bytes")
            return File(path=str(path), data=handle.read(MAX_FILE_BYTES + 1), mode=stat.S_IMODE(info.st_mode) & 0o777)


class _RefusedError(Exception):
    """A file that a task may not hold."""


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


def _megabytes(size: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])i?b?", str(size).strip().lower())
    if not match:
        raise ValueError(f"{size!r} is not a size such as '512M' or '2G'")
    return max(1, round(float(match[1]) * _UNITS[match[2]]))


def _path_problem(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return "leads out of the task directory"
    if any(part in ("", ".") for part in parts) or "\0" in path:
        return "not a plain relative path"
    return ""


def _write_file(root: Path, file: File) -> None:
    target = root / file.path
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with target.open("xb") as handle:
        handle.write(file.data)
        os.fchmod(handle.fileno(), file.mode & 0o777)
        handle.flush()
        os.fsync(handle.fileno())


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
