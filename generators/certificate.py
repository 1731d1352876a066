"""The certificate of a task: what was checked, with what result, over which bytes.

Invariants:
- It holds nothing that differs from run to run: no time, duration, host or path. The same task gives the same bytes.
- It can be held against its directory (`differences`) and earned again from the directory alone (`generators.verify`):
  it records the literal truth to look for and the item's seed, from which a cheater is drawn.
- Newer schemas are refused by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from generators.messages import Attempt, Blueprint
from runtime.task import CERTIFICATE, Task
from sandbox.base import BASE_DOCKERFILE

SCHEMA = 1


class Part(BaseModel):
    """Base of the certificate's parts. The file is ours: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Versions(Part):
    """What made the task."""

    termloom: str
    base: str
    """sha256 of the base environment's Dockerfile text."""
    players: str
    prompts: dict[str, str] = {}


class AttemptRecord(Part):
    """One solving attempt. `reward` is None when infrastructure took it: it does not count."""

    index: int
    reward: float | None
    failure: str
    turns: int
    commands: int


class BandRecord(Part):
    """What the task's difficulty band rests on, where it is not the author's own attempts."""

    policy: str
    attempts: int
    """Graded ones, as many as it took to decide."""
    passed: int


class Checks(Part):
    """What was shown, each in fresh sandboxes without a network."""

    failing_at_start: tuple[str, ...]
    """Final tests that fail, by assertion, on the untouched environment and after doing nothing."""
    reference_runs: int
    reference_passed: int
    """Equal: the reference passed every time."""
    solution_script_passed: bool
    """`solution/solve.sh`, graded by the task's own `tests/test.sh`: the task works in any Harbor runner."""
    no_op_reward: float
    cheater_reward: float
    cheater_commands: int
    cheater_digest: str
    """sha256 over the cheater's commands."""
    moved_clock_passed: bool = False
    """The reference passes tests whose clock is more than a year ahead (`generators.clock`)."""
    truth: tuple[str, ...]
    """Literal answers, found neither in the instruction nor in the environment nor in its built image."""


class Certificate(Part):
    schema_version: int = SCHEMA
    task_hash: str
    seed: int
    """The run's."""
    index: int
    item_seed: int
    versions: Versions
    inventory: tuple[str, ...]
    checks: Checks
    attempts: tuple[AttemptRecord, ...]
    pass_rate: float
    """Share of the graded attempts that passed. With a difficulty band attempts end when it has decided."""
    band: BandRecord | None = None
    files: dict[str, str]
    """`<mode> <sha256>` by path, for every file but this one."""

    def encode(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


class CertificateInvalidError(Exception):
    """There is no usable certificate."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{CERTIFICATE}: {reason}")


def issue(
    task: Task,
    *,
    blueprint: Blueprint,
    seed: int,
    checks: Checks,
    attempts: tuple[Attempt, ...],
    players: str,
    prompts: dict[str, str],
    band: BandRecord | None = None,
) -> Certificate:
    """Write down what was checked."""
    return Certificate(
        task_hash=task.hash(),
        seed=seed,
        index=blueprint.index,
        item_seed=blueprint.seed,
        versions=Versions(termloom=version("termloom"), base=base_digest(), players=players, prompts=prompts),
        inventory=task.inventory or (),
        checks=checks,
        attempts=tuple(
            AttemptRecord(index=a.index, reward=a.reward, failure=a.failure, turns=a.turns, commands=len(a.commands))
            for a in attempts
        ),
        pass_rate=pass_rate(attempts),
        band=band,
        files=file_hashes(task),
    )


def read_certificate(task: Task) -> Certificate:
    """The certificate that lies beside a task. Raises: CertificateInvalidError."""
    if task.certificate is None:
        raise CertificateInvalidError("missing")
    try:
        content: Any = json.loads(task.certificate)
    except (ValueError, RecursionError) as error:
        raise CertificateInvalidError(f"not JSON: {error}") from None
    written = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(written, int) and written > SCHEMA:
        raise CertificateInvalidError(f"schema {written} is newer than {SCHEMA}, which this version reads")
    try:
        return Certificate.model_validate_json(task.certificate)
    except ValidationError as error:
        issues = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise CertificateInvalidError(issues) from None


def missing(certificate: Certificate, task: Task) -> list[str]:
    """Files that were certified and are not there."""
    return sorted(certificate.files.keys() - file_hashes(task).keys())


def differences(certificate: Certificate, task: Task) -> list[str]:
    """How the directory differs from what was certified."""
    now, then = file_hashes(task), certificate.files
    found = [f"{path} is missing" for path in missing(certificate, task)]
    found += [f"{path} was added" for path in sorted(now.keys() - then.keys())]
    found += [f"{path} was changed" for path in sorted(now.keys() & then.keys()) if now[path] != then[path]]
    if not found and task.hash() != certificate.task_hash:
        found.append("the certificate's task_hash is not that of its files")
    if certificate.versions.base != base_digest():
        found.append("the base environment is another one than it was certified with")
    return found


def commands_digest(commands: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(commands).encode()).hexdigest()


def pass_rate(attempts: tuple[Attempt, ...]) -> float:
    graded = [attempt.reward for attempt in attempts if attempt.reward is not None]
    return round(sum(reward >= 1.0 for reward in graded) / len(graded), 4) if graded else 0.0


def file_hashes(task: Task) -> dict[str, str]:
    return {f.path: f"{f.mode & 0o777:04o} {hashlib.sha256(f.data).hexdigest()}" for f in task.layout()}


def base_digest() -> str:
    return hashlib.sha256(BASE_DOCKERFILE.encode()).hexdigest()
