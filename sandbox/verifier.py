"""Decides rewards: runs a suite in a fresh sandbox over a frozen file system and says what came of it.

Invariants:
- Nothing that the agent touched is trusted: its processes are dead (`Sandbox.freeze`), the tests arrive afterwards in a
  sandbox that never ran a command of the agent, and what the engines promise for `Profile.GRADE` holds: no /tests, no
  /logs, no /etc/ld.so.preload of the agent's making.
- In trusted mode the interpreter, pytest and the grader program are ours (`sandbox.trusted`, `sandbox.grader`), and the
  report carries a nonce that travelled on the grader's standard input.
- Only a verdict that grading reached carries a reward. Infrastructure failure is `reward=None` with a class that says
  why, and never an exception; a broken suite is an infrastructure failure of the task.
- Missing evidence is never a reward: no report, no reward file, no number in it. A trusted grader that began its tests
  and ended without a report, twice, was ended by what the agent left: reward 0, or else that would be a way out of it.
"""

from __future__ import annotations

import json
import math
import posixpath
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources

import msgspec

from sandbox.engine import Engine, Sandbox
from sandbox.errors import SandboxError, SandboxLost, ServiceUnhealthy, TransferRefused
from sandbox.services import Service, start_services
from sandbox.spec import ExecResult, FailureClass, File, GradedTest, Limits, Profile, SandboxSpec, Suite, Verdict
from sandbox.trusted import trusted_argv

TESTS_DIR = "/tests"
REWARD_DIR = "/logs/verifier"
_LIMITS = Limits()
_REPORT_LIMIT = 16 << 20
_REWARD_LIMIT = 64 * 1024
_TAIL_BYTES = 1000
_PYTEST_BROKE, _PYTEST_MISUSED = 3, 4
"""pytest's exit codes for an internal and a usage error."""
_RUN_TEST_SH = f"rm -rf /logs && mkdir -p {REWARD_DIR} && exec bash {TESTS_DIR}/test.sh"


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `sandbox.grader.run` writes."""

    nonce: str
    tests: tuple[GradedTest, ...]
    exit_code: int
    log: str


async def grade(
    engine: Engine,
    image: str,
    suite: Suite,
    *,
    services: Sequence[Service] = (),
    limits: Limits = _LIMITS,
    run_id: str,
    purpose: str = "grade",
) -> Verdict:
    """Grade the frozen file system `image` with `suite`, its services started again before the tests arrive.

    A service that does not come up is a finding like any other: the tests say what it is worth, at a second look.

    Never raises for infrastructure: the verdict then has no reward. The sandbox is removed in any case.
    """
    started = time.monotonic()
    spec = SandboxSpec(image=image, profile=Profile.GRADE, limits=limits, run_id=run_id, purpose=purpose)
    verdict = await _grade(engine, spec, suite, services)
    return msgspec.structs.replace(verdict, duration_s=time.monotonic() - started)


async def _grade(engine: Engine, spec: SandboxSpec, suite: Suite, services: Sequence[Service]) -> Verdict:
    try:
        return await _grade_once(engine, spec, suite, services)
    except _DoubtError:
        pass
    try:
        return await _grade_once(engine, spec, suite, services)
    except _DoubtError as twice:
        return twice.verdict


class _DoubtError(Exception):
    """A verdict that one look does not prove: what ended the grader, or kept a service down, may have been a machine
    without memory or time. Seen twice, it is what the agent left."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


def _grader_ended(why: str) -> _DoubtError:
    """The grader began and gave no report, while the sandbox lived: what the tests ran has ended it."""
    return _DoubtError(Verdict(reward=0.0, failure=FailureClass.AGENT_FAIL, detail=why))


async def _grade_once(engine: Engine, spec: SandboxSpec, suite: Suite, services: Sequence[Service]) -> Verdict:
    try:
        sandbox = await engine.create(spec)
    except SandboxError as error:
        return _no_reward(FailureClass.SANDBOX_CREATE, str(error))
    verdict: Verdict | None = None
    try:
        async with sandbox:
            unhealthy = await _start(sandbox, services)
            verdict = await (_grade_trusted if suite.mode == "trusted" else _grade_harbor)(sandbox, suite)
            if unhealthy and not verdict.passed:
                verdict = msgspec.structs.replace(verdict, detail=f"{verdict.detail}\n{unhealthy}".strip())
                if verdict.reward is not None:
                    raise _DoubtError(verdict)
    except SandboxLost as error:
        return verdict or _no_reward(FailureClass.SANDBOX_LOST, str(error))
    except SandboxError as error:
        return verdict or _no_reward(FailureClass.GRADE_ERROR, str(error))
    return verdict


async def _start(sandbox: Sandbox, services: Sequence[Service]) -> str:
    """Start the services; what is wrong with them, in words."""
    try:
        await start_services(sandbox, services)
    except ServiceUnhealthy as unhealthy:
        return unhealthy.report
    return ""


# Trusted mode


async def _grade_trusted(sandbox: Sandbox, suite: Suite) -> Verdict:
    files = _placed(suite.files, mask=0o700)
    await sandbox.put(files)
    nonce = secrets.token_hex(16)
    config = {
        "nonce": nonce,
        "modules": [file.path for file in files if _is_test_module(file.path)],
        "test_timeout_s": suite.test_timeout_s,
        "env": suite.env,
    }
    if not config["modules"]:
        return _no_reward(FailureClass.GRADE_ERROR, "the suite holds no test module (test_*.py)")
    result = await sandbox.exec(
        [*trusted_argv(), "-c", grader_source()],
        stdin=json.dumps(config).encode(),
        user="root",
        cwd="/",
        timeout_s=suite.timeout_s,
        output_limit=_REPORT_LIMIT,
    )
    if result.timed_out:
        return _no_reward(FailureClass.GRADE_TIMEOUT, f"the tests took longer than {suite.timeout_s:g} s")
    report = _read_report(result, nonce)
    return report if isinstance(report, Verdict) else judge(report.tests, suite.inventory)


def grader_source() -> str:
    """The program that the trusted interpreter runs."""
    return resources.files("sandbox.grader").joinpath("run.py").read_text("utf-8")


def judge(tests: Sequence[GradedTest], inventory: Sequence[str] | None) -> Verdict:
    """The reward for these outcomes: 1 when there is a test, all passed, and the inventory is met exactly; else 0."""
    failed = [f"{test.name}: {test.outcome} {test.exception}".rstrip() for test in tests if test.outcome != "passed"]
    problems = [] if tests else ["no test was collected"]
    problems += [f"{len(failed)} of {len(tests)} tests did not pass: {', '.join(failed)}"] if failed else []
    if inventory is not None:
        seen, wanted = Counter(test.name for test in tests), Counter(inventory)
        problems += [f"missing test {name}" for name in wanted - seen]
        problems += [f"test {name} is not in the inventory" for name in seen - wanted]
    return Verdict(
        reward=0.0 if problems else 1.0,
        failure=FailureClass.AGENT_FAIL if problems else FailureClass.OK,
        tests=tuple(tests),
        detail="; ".join(problems),
    )


def _read_report(result: ExecResult, nonce: str) -> _Report | Verdict:
    """What follows the first line is the tests' doing, whatever it is. Raises: _DoubtError."""
    first_line, _, rest = result.stdout.partition(b"\n")
    if not secrets.compare_digest(first_line, nonce.encode()):
        detail = f"the grader ended with {result.exit_code} before it began: {_tail(result.stderr)}"
        return _no_reward(FailureClass.GRADE_ERROR, detail)
    try:
        report = msgspec.json.decode(rest, type=_Report)
    except (msgspec.MsgspecError, RecursionError):
        raise _grader_ended(f"the tests ended the grader with {result.exit_code}: it left no report") from None
    if not secrets.compare_digest(report.nonce.encode(), nonce.encode()):  # only as bytes may they be any text
        raise _grader_ended("the tests left a report without the nonce of this grading")
    if report.exit_code == _PYTEST_BROKE:
        raise _grader_ended(f"the tests broke pytest: {report.log}")
    if report.exit_code == _PYTEST_MISUSED:
        return _no_reward(FailureClass.GRADE_ERROR, f"pytest refused its arguments: {report.log}")
    return report


# Harbor mode


async def _grade_harbor(sandbox: Sandbox, suite: Suite) -> Verdict:
    await sandbox.put(_placed(suite.files))
    result = await sandbox.exec(["bash", "-c", _RUN_TEST_SH], user="root", env=suite.env, timeout_s=suite.timeout_s)
    if result.timed_out:
        return _no_reward(FailureClass.GRADE_TIMEOUT, f"test.sh took longer than {suite.timeout_s:g} s")
    for name, parse in (("reward.json", reward_from_json), ("reward.txt", reward_from_text)):
        try:
            content = await sandbox.get(f"{REWARD_DIR}/{name}", max_bytes=_REWARD_LIMIT)
        except TransferRefused as error:
            return _no_reward(FailureClass.REWARD_INVALID, str(error))
        if content is not None:
            return _rewarded(name, parse, content, log=_tail(result.stdout + result.stderr))
    detail = f"test.sh ended with {result.exit_code} and left no reward file: {_tail(result.stderr or result.stdout)}"
    return _no_reward(FailureClass.REWARD_INVALID, detail)


def reward_from_json(content: bytes) -> float:
    """The number called `reward` in a flat JSON object, or its only number. Raises: ValueError."""
    try:
        rewards = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(rewards, dict) or not all(type(value) in (int, float) for value in rewards.values()):
        raise ValueError("is no flat object of numbers")
    if "reward" not in rewards and len(rewards) != 1:
        raise ValueError(f"has no 'reward' among {sorted(rewards)}")
    return _finite(rewards["reward"] if "reward" in rewards else next(iter(rewards.values())))


def reward_from_text(content: bytes) -> float:
    """The one number that a text consists of. Raises: ValueError."""
    text = content.decode("utf-8", "replace").strip()
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"holds no number but {text[:80]!r}") from None
    return _finite(number)


def _finite(number: float) -> float:
    try:
        finite = math.isfinite(number)
    except OverflowError:  # an integer beyond every float
        raise ValueError("holds an integer that no float can hold") from None
    if not finite:
        raise ValueError(f"holds {number}, which is not finite")
    return float(number)


def _rewarded(name: str, parse: Callable[[bytes], float], content: bytes, *, log: str) -> Verdict:
    if not content.strip():
        return _no_reward(FailureClass.REWARD_INVALID, f"{name} is empty")
    try:
        reward = parse(content)
    except ValueError as error:
        return _no_reward(FailureClass.REWARD_INVALID, f"{name} {error}")
    if reward >= 1.0:
        return Verdict(reward=reward, failure=FailureClass.OK)
    return Verdict(reward=reward, failure=FailureClass.AGENT_FAIL, detail=log)


# Both


def _placed(files: Sequence[File], *, mask: int = 0o777) -> list[File]:
    """The suite's files under /tests, owned by root, modes within `mask`.

    In trusted mode only root may read them: what a test runs as the agent finds no answers there.

    Raises: TransferRefused for a path that leads out of /tests.
    """
    placed = []
    for file in files:
        path = posixpath.normpath(posixpath.join(TESTS_DIR, file.path))
        if not path.startswith(f"{TESTS_DIR}/"):
            raise TransferRefused(file.path, f"it leads out of {TESTS_DIR}")
        placed.append(File(path=path, data=file.data, mode=file.mode & mask))
    return placed


def _is_test_module(path: str) -> bool:
    name = posixpath.basename(path)
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))


def _no_reward(failure: FailureClass, detail: str) -> Verdict:
    return Verdict(reward=None, failure=failure, detail=detail)


def _tail(output: bytes) -> str:
    return output[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
