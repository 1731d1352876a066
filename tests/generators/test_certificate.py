"""Certificates and assembled directories are functions of the task, and changes show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from generators.assemble import assemble, directory_name
from generators.certificate import (
    Certificate,
    CertificateInvalidError,
    Checks,
    commands_digest,
    differences,
    issue,
    pass_rate,
    read_certificate,
)
from runtime.task import Task, read_task, write_task
from sandbox.spec import File
from tests.generators.parts import make_solved

CHECKS = Checks(
    failing_at_start=("test_sum",),
    reference_runs=3,
    reference_passed=3,
    solution_script_passed=True,
    no_op_reward=0.0,
    cheater_reward=0.0,
    cheater_commands=1,
    cheater_digest=commands_digest(("touch /home/agent/out",)),
    truth=("secret-answer",),
)


def certified_task() -> tuple[Task, Certificate]:
    solved = make_solved()
    task = assemble(solved, seed=0)
    certificate = issue(
        task,
        blueprint=solved.examined.blueprint,
        seed=0,
        checks=CHECKS,
        attempts=solved.attempts,
        players="procedural",
        prompts={},
    )
    return dataclasses.replace(task, certificate=certificate.encode()), certificate


def test_a_certificate_reads_back_equal_and_finds_its_task_unchanged(tmp_path: Path) -> None:
    task, certificate = certified_task()
    write_task(task, tmp_path / "t")
    again = read_task(tmp_path / "t")
    assert read_certificate(again) == certificate
    assert differences(certificate, again) == []


def test_the_same_item_gives_the_same_bytes() -> None:
    (first, certificate), (second, again) = certified_task(), certified_task()
    assert first == second
    assert certificate.encode() == again.encode()


def test_attempts_that_infrastructure_took_do_not_count() -> None:
    assert pass_rate(make_solved().attempts) == 0.5


def test_every_change_of_a_file_is_told() -> None:
    task, certificate = certified_task()
    first, second, *rest = task.files
    changed = dataclasses.replace(
        task,
        files=(
            File(path=first.path, data=first.data, mode=0o600),
            *rest,
            File(path="tests/extra.py", data=b""),
        ),
        instruction="Something else.\n",
    )
    assert differences(certificate, changed) == [
        f"{second.path} is missing",
        "tests/extra.py was added",
        f"{first.path} was changed",
        "instruction.md was changed",
    ]


def test_truth_stays_out_of_what_an_agent_sees() -> None:
    task, _ = certified_task()
    seen = [task.instruction.encode(), *(file.data for file in task.folder("environment"))]
    assert not any(b"secret-answer" in content for content in seen)


def test_the_assembled_directory_is_a_whole_harbor_task() -> None:
    task, _ = certified_task()
    assert {file.path for file in task.layout()} == {
        "environment/Dockerfile",
        "environment/files/rows.txt",
        "instruction.md",
        "solution/solve.sh",
        "task.toml",
        "tests/test.sh",
        "tests/test_initial_state.py",
        "tests/test_outputs.py",
    }
    assert task.inventory == ("test_sum",)
    assert not task.context().network
    assert (task.text("solution/solve.sh") or "").startswith("#!/bin/bash\necho w")


def test_directory_names_are_readable_and_unique() -> None:
    names = {directory_name(make_solved(seed, index)) for seed in (0, 1) for index in (0, 12)}
    assert names == {"sum-the-rows-0-00000", "sum-the-rows-0-00012", "sum-the-rows-1-00000", "sum-the-rows-1-00012"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON: maximum recursion depth"),
        (b"[]", "Input should be an object"),
        (b'{"schema_version": 2}', "schema 2 is newer"),
        (b'{"schema_version": 1}', "task_hash: Field required"),
    ],
)
def test_what_is_no_certificate_is_refused_with_the_reason(content: bytes | None, problem: str) -> None:
    task, _ = certified_task()
    with pytest.raises(CertificateInvalidError, match=problem):
        read_certificate(dataclasses.replace(task, certificate=content))


def test_a_certificate_with_an_unknown_key_is_refused() -> None:
    task, certificate = certified_task()
    content = json.loads(certificate.encode()) | {"note": "hello"}
    with pytest.raises(CertificateInvalidError, match="note"):
        read_certificate(dataclasses.replace(task, certificate=json.dumps(content).encode()))
