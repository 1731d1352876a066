"""What a sandbox is asked for, and what comes back from it.

Everything here is plain, frozen data. Units are in the names. An exit code is the true one; a command that timed out
has none.
"""

from __future__ import annotations

import enum
from typing import Literal, dataclass_transform

import msgspec

AGENT_USER = "agent"
AGENT_UID = 1000
AGENT_HOME = "/home/agent"
TRUSTED_DIR = "/.termloom"
"""Where a grading sandbox sees the trusted interpreter, read-only. Agent sandboxes have no such directory."""


@dataclass_transform(frozen_default=True)
class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the package's data."""


class Limits(Record):
    """What one sandbox may use."""

    memory_mb: int = 2048
    pids: int = 512
    cpus: float = 1.0
    disk_mb: int = 1024
    lifetime_s: float = 3600.0
    """The sandbox ends by itself after this long, whoever started it and whether or not they still live."""


class Profile(enum.StrEnum):
    """What the processes in a sandbox are allowed to do."""

    AGENT = "agent"
    """No capability, no new privileges, no network."""
    BUILD = "build"
    """What a package manager needs (CHOWN, SETUID, ...); network when the spec says so."""
    GRADE = "grade"
    """Reads every file, no network, sees the trusted interpreter at TRUSTED_DIR."""


class SandboxSpec(Record):
    """One sandbox to start."""

    image: str
    """Image id as returned by `Engine.build` or `Sandbox.freeze`."""
    profile: Profile = Profile.AGENT
    limits: Limits = Limits()
    network: Literal["none", "host"] = "none"
    env: dict[str, str] = {}
    run_id: str = "adhoc"
    """Owner: reaped together, listed together."""
    purpose: str = ""
    """For people: `solve 00007/3`."""


class File(Record):
    """One regular file to place or take."""

    path: str
    """Absolute inside a sandbox; relative to the build context in a `BuildContext`."""
    data: bytes
    mode: int = 0o644
    owner: Literal["root", "agent"] = "root"


class BuildContext(Record):
    """A Dockerfile and the files it may COPY. Never holds truth, tests or solution."""

    dockerfile: str
    files: tuple[File, ...] = ()
    network: bool = False
    """Whether RUN steps may reach the network. The base environment never needs it."""
    timeout_s: float = 600.0


class BuildResult(Record):
    """What became of a build. `image` is empty when it failed."""

    image: str
    failed_step: str = ""
    """The instruction that failed, as written."""
    exit_code: int | None = None
    log_tail: str = ""
    cached: bool = False
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return bool(self.image)


class ExecResult(Record):
    """One finished process, outside any session."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0


class CommandResult(Record):
    """One command in a session.

    `output` is stdout and stderr merged as they came, decoded as UTF-8 with replacement characters. When more came
    than the limit, `output` is head, a one-line note with the number of dropped bytes, and tail.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    shell_restarted: bool = False
    total_bytes: int = 0
    dropped_bytes: int = 0
    duration_s: float = 0.0


class FailureClass(enum.StrEnum):
    """How an attempt ended. Only a real verdict carries a reward: see `Verdict`."""

    OK = "ok"
    AGENT_FAIL = "agent_fail"
    AGENT_TIMEOUT = "agent_timeout"
    TURN_LIMIT = "turn_limit"
    LOOP = "loop"
    PARSE = "parse"
    CONTEXT_LENGTH = "context_length"
    OUTPUT_LENGTH = "output_length"
    LLM_ERROR = "llm_error"
    LLM_FILTERED = "llm_filtered"
    BUDGET = "budget"
    SANDBOX_CREATE = "sandbox_create"
    SANDBOX_LOST = "sandbox_lost"
    SANDBOX_OOM = "sandbox_oom"
    EXEC_ERROR = "exec_error"
    GRADE_ERROR = "grade_error"
    GRADE_TIMEOUT = "grade_timeout"
    REWARD_INVALID = "reward_invalid"
    STALE_DROPPED = "stale_dropped"
    CANCELLED = "cancelled"
    INFRA_OTHER = "infra_other"


class GradedTest(Record):
    """One test as the grader saw it."""

    name: str
    """Node name inside the test module: `test_sum_is_right` or `test_row[3]`."""
    outcome: Literal["passed", "failed", "error", "skipped", "timeout"]
    """failed = AssertionError; error = anything else that was raised, also at collection."""
    exception: str = ""
    message: str = ""


class Suite(Record):
    """The tests of a task, delivered to the grader after the agent is dead.

    trusted: `tests/test_outputs.py` style pytest modules, run by the trusted interpreter, private result channel.
    harbor:  `tests/test.sh` of any Harbor task, run with the image's own tools, reward read from /logs/verifier.
    """

    files: tuple[File, ...]
    """Paths relative to /tests."""
    mode: Literal["trusted", "harbor"] = "trusted"
    inventory: tuple[str, ...] | None = None
    """Names that must all be collected and pass; None while a task is still being written."""
    timeout_s: float = 600.0
    test_timeout_s: float = 30.0
    env: dict[str, str] = {}


class Verdict(Record):
    """What grading decided. Infrastructure failure has no reward: `reward` is None and `failure` says why."""

    reward: float | None
    failure: FailureClass
    tests: tuple[GradedTest, ...] = ()
    detail: str = ""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.reward is not None and self.reward >= 1.0

    @property
    def share_passed(self) -> float:
        """Share of tests that passed, 0 when there is none."""
        return sum(t.outcome == "passed" for t in self.tests) / len(self.tests) if self.tests else 0.0


class SandboxRecord(Record):
    """A sandbox as the engine's inventory shows it, for `ps`, the reaper and `gc`."""

    sandbox_id: str
    engine: str
    run_id: str
    purpose: str
    owner: str
    """The process that holds the lease, as `sandbox.owner` names it."""
    created_at: float
    expires_at: float
