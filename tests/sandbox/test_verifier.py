"""Rewards: what a suite's outcomes are worth, on pure data and in real grading sandboxes."""

import math
import textwrap

import anyio
import pytest

from sandbox.engine import Sandbox
from sandbox.spec import ExecResult, FailureClass, File, GradedTest, SandboxSpec, Suite, Verdict
from sandbox.verifier import grade, judge, reward_from_json, reward_from_text
from tests.sandbox.conftest import OpenEngine


def passed(name: str) -> GradedTest:
    return GradedTest(name=name, outcome="passed")


# The decision


def test_all_passed_is_the_full_reward() -> None:
    verdict = judge([passed("a"), passed("b")], ["b", "a"])
    assert (verdict.reward, verdict.failure, verdict.detail) == (1.0, FailureClass.OK, "")


@pytest.mark.parametrize(
    ("tests", "inventory", "reason"),
    [
        ([], None, "no test was collected"),
        ([], ["a"], "missing test a"),
        ([passed("a")], ["a", "b"], "missing test b"),
        ([passed("a"), passed("b")], ["a"], "test b is not in the inventory"),
        ([passed("a"), passed("a")], ["a"], "test a is not in the inventory"),
        ([passed("a"), GradedTest(name="b", outcome="skipped")], None, "1 of 2 tests did not pass: b: skipped"),
        ([GradedTest(name="b", outcome="failed", exception="AssertionError")], ["b"], "b: failed AssertionError"),
        ([GradedTest(name="b", outcome="timeout")], None, "b: timeout"),
        ([GradedTest(name="<module>", outcome="error")], None, "<module>: error"),
    ],
)
def test_anything_else_is_none_of_it(tests: list[GradedTest], inventory: list[str] | None, reason: str) -> None:
    verdict = judge(tests, inventory)
    assert (verdict.reward, verdict.failure) == (0.0, FailureClass.AGENT_FAIL)
    assert reason in verdict.detail


@pytest.mark.parametrize(
    ("text", "reward"), [(b"1\n", 1.0), (b" 0.25 ", 0.25), (b"0", 0.0), (b"1e-1", 0.1), (b"-1", -1.0)]
)
def test_reward_text(text: bytes, reward: float) -> None:
    assert math.isclose(reward_from_text(text), reward)


@pytest.mark.parametrize(
    ("text", "reason"), [(b"pass", "no number"), (b"1 1", "no number"), (b"nan", "not finite"), (b"inf", "not finite")]
)
def test_a_text_that_is_no_reward(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reward_from_text(text)


@pytest.mark.parametrize(("text", "reward"), [(b'{"reward": 1, "x": 0}', 1.0), (b'{"score": 0.5}', 0.5)])
def test_reward_json(text: bytes, reward: float) -> None:
    assert reward_from_json(text) == reward


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "not JSON"),
        (b"1", "no flat object"),
        (b"{}", "has no 'reward'"),
        (b'{"a": 1, "b": 1}', "has no 'reward'"),
        (b'{"reward": "1"}', "no flat object"),
        (b'{"reward": true}', "no flat object"),
        (b'{"reward": NaN}', "not finite"),
        (b'{"reward": 1' + b"0" * 400 + b"}", "no float can hold"),
        (b'{"reward": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b'{"a": ' * 50_000, "not JSON"),
    ],
)
def test_a_json_that_is_no_reward(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reward_from_json(text)


# Trusted mode


def trusted(*modules: str, **settings: object) -> Suite:
    files = tuple(
        File(path=f"test_{number}.py", data=textwrap.dedent(module).encode()) for number, module in enumerate(modules)
    )
    return Suite(files=files, **settings)


async def graded(open_any: OpenEngine, suite: Suite) -> Verdict:
    async with open_any() as (engine, image):
        return await grade(engine, image, suite, run_id="tests")


EVERY_OUTCOME = """
    import os, subprocess, sys, time
    import pytest

    def test_passes(tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("A", "1")
        (tmp_path / "x").write_text("x")
        print("seen")
        assert capsys.readouterr().out == "seen\\n"
        assert str(tmp_path).startswith("/tmp/grade-")
        with pytest.raises(KeyError):
            {}["x"]

    def test_asserts():
        assert 1 == 2, "one is not two"

    def test_fails():
        pytest.fail("because")

    def test_raises_nothing():
        with pytest.raises(KeyError):
            pass

    def test_errs():
        raise OSError("\\udcff no such thing")

    def test_exits():
        sys.exit(0)

    def test_skips():
        pytest.skip("not now")

    @pytest.mark.xfail
    def test_expects_failure():
        assert False

    @pytest.mark.parametrize("n", [1, 2])
    def test_each(n):
        assert n == 1

    class TestGroup:
        def test_member(self):
            pass

    @pytest.fixture
    def broken():
        raise LookupError("fixture")

    def test_needs_broken(broken):
        pass

    @pytest.fixture
    def late():
        yield
        raise LookupError("teardown")

    def test_needs_late(late):
        pass

    def test_environment():
        assert set(os.environ) <= {"PATH", "HOME", "LANG", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "GIVEN",
                                   "PYTEST_CURRENT_TEST", "PYTEST_VERSION"}
        assert os.environ["GIVEN"] == "yes"

    def test_hangs():
        try:
            time.sleep(60)
        except Exception:
            pass

    def test_after_it():
        pass
"""

INSISTENT = """
    import subprocess, time

    def test_insists_on_hanging():
        while True:
            try:
                subprocess.run(["sleep", "60"])
            except BaseException:
                time.sleep(60)
"""


async def test_every_outcome(open_any: OpenEngine) -> None:
    verdict = await graded(open_any, trusted(EVERY_OUTCOME, test_timeout_s=5.0, env={"GIVEN": "yes"}))
    assert {test.name: (test.outcome, test.exception) for test in verdict.tests} == {
        "test_passes": ("passed", ""),
        "test_asserts": ("failed", "AssertionError"),
        "test_fails": ("failed", "Failed"),
        "test_raises_nothing": ("failed", "Failed"),
        "test_errs": ("error", "OSError"),
        "test_exits": ("error", "SystemExit"),
        "test_skips": ("skipped", "Skipped"),
        "test_expects_failure": ("skipped", "AssertionError"),
        "test_each[1]": ("passed", ""),
        "test_each[2]": ("failed", "AssertionError"),
        "TestGroup::test_member": ("passed", ""),
        "test_needs_broken": ("error", "LookupError"),
        "test_needs_late": ("error", "LookupError"),
        "test_hangs": ("timeout", "OutOfTime"),
        "test_environment": ("passed", ""),
        "test_after_it": ("error", "NotRun"),
    }
    assert next(test for test in verdict.tests if test.name == "test_asserts").message.startswith("one is not two")
    assert (verdict.reward, verdict.failure) == (0.0, FailureClass.AGENT_FAIL)


async def test_a_test_that_swallows_its_alarm_is_out_of_time(open_any: OpenEngine) -> None:
    verdict = await graded(open_any, trusted(INSISTENT, test_timeout_s=5.0))
    assert [(test.name, test.outcome) for test in verdict.tests] == [("test_insists_on_hanging", "timeout")]


async def test_a_broken_module_is_an_error_of_the_module(open_any: OpenEngine) -> None:
    verdict = await graded(open_any, trusted("import no_such_thing", "def test_ok(): pass"))
    outcomes = [(test.name, test.outcome, test.exception) for test in verdict.tests]
    assert ("<module>", "error", "ModuleNotFoundError") in outcomes
    assert verdict.reward == 0.0


async def test_what_tests_left_at_work_keeps_no_verdict_waiting(open_any: OpenEngine) -> None:
    module = """
        import atexit, threading, time

        def test_leaves_a_thread():
            threading.Thread(target=time.sleep, args=(3600,)).start()
            atexit.register(time.sleep, 3600)
    """
    verdict = await graded(open_any, trusted(module))
    assert verdict.reward == 1.0, verdict


async def test_tests_that_an_early_end_kept_from_running_are_errors(open_any: OpenEngine) -> None:
    verdict = await graded(
        open_any,
        trusted("""
            import os, pytest

            def test_a():
                if not os.fork():
                    raise SystemExit

            def test_b():
                pytest.exit("enough", 0)

            def test_c(): pass
        """),
    )
    assert [(test.name, test.outcome) for test in verdict.tests] == [
        ("test_a", "passed"),
        ("test_b", "error"),
        ("test_c", "error"),
    ]


ATTACK = """
    import os, subprocess, sys

    PROGRAM = '''
    import os, sys
    grader = os.getppid()
    for path in (f"/proc/{grader}/mem", f"/proc/{grader}/environ"):
        try:
            open(path, "r+b")
        except OSError:
            continue
        sys.exit(f"opened {path}")
    for fd in os.listdir(f"/proc/{grader}/fd"):
        try:
            os.open(f"/proc/{grader}/fd/{fd}", os.O_RDWR)
        except OSError:
            continue
        sys.exit(f"opened descriptor {fd}")
    for fd in range(3, 64):
        try:
            os.fstat(fd)
        except OSError:
            continue
        sys.exit(f"inherited {fd}")
    '''

    def test_the_grader_is_out_of_reach():
        import textwrap
        done = subprocess.run(["python3", "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_our_own_streams_lead_nowhere():
        assert {os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}
"""


async def test_a_program_run_by_a_test_cannot_reach_the_grader(open_any: OpenEngine) -> None:
    verdict = await graded(open_any, trusted(ATTACK))
    assert verdict.reward == 1.0, verdict.tests


async def test_a_program_run_as_the_agent_cannot_read_the_tests(open_any: OpenEngine) -> None:
    module = """
        import subprocess

        def test_reading():
            done = subprocess.run(["cat", "/tests/test_0.py"], user=1000, capture_output=True)
            assert done.returncode != 0
            assert b"Permission denied" in done.stderr
    """
    verdict = await graded(open_any, trusted(module))
    assert verdict.reward == 1.0, verdict


@pytest.mark.parametrize(
    ("suite", "failure", "detail"),
    [
        (trusted("import time; time.sleep(60)", timeout_s=2.0), FailureClass.GRADE_TIMEOUT, "longer than 2 s"),
        (Suite(files=(File(path="helper.py", data=b""),)), FailureClass.GRADE_ERROR, "no test module"),
        (Suite(files=(File(path="../test_x.py", data=b""),)), FailureClass.GRADE_ERROR, "leads out of /tests"),
    ],
)
async def test_without_evidence_there_is_no_reward(
    open_any: OpenEngine, suite: Suite, failure: FailureClass, detail: str
) -> None:
    verdict = await graded(open_any, suite)
    assert (verdict.reward, verdict.failure) == (None, failure)
    assert detail in verdict.detail


def forged(report: str) -> str:
    """A module that writes `report` to the grader's channel, whichever descriptor that is, and ends the grader."""
    return textwrap.dedent(f"""
        import os
        for fd in range(3, 99):
            try:
                with open(fd, "wb") as channel:
                    channel.write({report!r}.encode())
            except OSError:
                continue
        os._exit(0)
    """)


@pytest.mark.parametrize(
    ("module", "detail"),
    [
        ("import os; os._exit(0)", "ended the grader with 0: it left no report"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it left no report"),
        ("import os\nfor fd in range(3, 99):\n  try: os.write(fd, b'{}')\n  except OSError: pass", "left no report"),
        (
            "def test_a(request): request.session.config.hook.pytest_runtest_logreport = None\n"
            "def test_b(request): request.config.pluginmanager = None",
            "the tests broke pytest",
        ),
        (forged('{"nonce": "é", "tests": [], "exit_code": 0, "log": ""}'), "without the nonce"),
        (forged('{"x": ' + "[" * 100_000 + "]" * 100_000), "left no report"),
        (forged('{"nonce": "", "tests": [], "exit_code": 1' + "0" * 5000), "left no report"),
    ],
)
async def test_ending_the_grader_is_no_way_out_of_a_reward_of_0(open_any: OpenEngine, module: str, detail: str) -> None:
    verdict = await graded(open_any, trusted(module))
    assert (verdict.reward, verdict.failure) == (0.0, FailureClass.AGENT_FAIL)
    assert detail in verdict.detail


async def test_a_grader_that_never_began_is_infrastructure(
    open_any: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.verifier.trusted_argv", lambda: ["/bin/false"])
    verdict = await graded(open_any, trusted("def test_a(): pass"))
    assert (verdict.reward, verdict.failure) == (None, FailureClass.GRADE_ERROR)
    assert "ended with 1 before it began" in verdict.detail


# Harbor mode


def harbor(script: str, **settings: object) -> Suite:
    return Suite(files=(File(path="test.sh", data=script.encode(), mode=0o755),), mode="harbor", **settings)


@pytest.mark.parametrize(
    ("script", "reward", "failure", "detail"),
    [
        ("echo 1 > /logs/verifier/reward.txt; exit 9", 1.0, FailureClass.OK, ""),
        ("echo 0 > /logs/verifier/reward.txt", 0.0, FailureClass.AGENT_FAIL, ""),
        (
            "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 0.5}' > /logs/verifier/reward.json",
            0.5,
            FailureClass.AGENT_FAIL,
            "",
        ),
        ("echo oops >&2; exit 3", None, FailureClass.REWARD_INVALID, "ended with 3 and left no reward file: oops"),
        ("touch /logs/verifier/reward.json", None, FailureClass.REWARD_INVALID, "reward.json is empty"),
        ("echo pass > /logs/verifier/reward.txt", None, FailureClass.REWARD_INVALID, "holds no number"),
        ("echo nan > /logs/verifier/reward.txt", None, FailureClass.REWARD_INVALID, "not finite"),
        ("head -c 99999 /dev/zero > /logs/verifier/reward.txt", None, FailureClass.REWARD_INVALID, "refused"),
        ("test -z \"$(ls -A /logs/verifier)\" && id -u > /logs/verifier/reward.txt", 0.0, FailureClass.AGENT_FAIL, ""),
    ],
)  # fmt: skip
async def test_harbor_reward(
    open_any: OpenEngine, script: str, reward: float | None, failure: FailureClass, detail: str
) -> None:
    verdict = await graded(open_any, harbor(script))
    assert (verdict.reward, verdict.failure) == (reward, failure), verdict.detail
    assert detail in verdict.detail


async def test_harbor_time_out(open_any: OpenEngine) -> None:
    verdict = await graded(open_any, harbor("echo 1 > /logs/verifier/reward.txt; sleep 60", timeout_s=1.0))
    assert (verdict.reward, verdict.failure) == (None, FailureClass.GRADE_TIMEOUT)


# Infrastructure


async def test_an_image_that_is_not_there_is_no_reward(open_any: OpenEngine) -> None:
    async with open_any() as (engine, image):
        verdict = await grade(engine, f"{image}-gone", trusted("def test_a(): pass"), run_id="tests")
    assert (verdict.reward, verdict.failure) == (None, FailureClass.SANDBOX_CREATE)


async def test_a_sandbox_lost_while_grading_is_no_reward_and_nothing_is_left(open_any: OpenEngine) -> None:
    suite = trusted("import time\ndef test_a(): time.sleep(600)", timeout_s=60.0, test_timeout_s=600.0)
    async with open_any() as (engine, image):
        created: list[str] = []

        async def create_and_lose(spec: SandboxSpec) -> Sandbox:
            sandbox = await create(spec)
            created.append(sandbox.id)
            run = sandbox.exec

            async def run_and_lose(*args: object, **options: object) -> ExecResult:
                tasks.start_soon(engine.remove, sandbox.id)
                return await run(*args, **options)

            sandbox.exec = run_and_lose  # type: ignore[method-assign]
            return sandbox

        create, engine.create = engine.create, create_and_lose  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            verdict = await grade(engine, image, suite, run_id="lost")
        assert (verdict.reward, verdict.failure) == (None, FailureClass.SANDBOX_LOST)
        assert created
        assert [record for record in await engine.inventory() if record.sandbox_id in created] == []


async def test_the_image_stays_usable_and_the_sandbox_goes(open_any: OpenEngine) -> None:
    async with open_any() as (engine, image):
        async with await engine.create(SandboxSpec(image=image, run_id="tests")) as sandbox:
            await sandbox.exec(["bash", "-c", "echo 1 > ~/x"])
            frozen = await sandbox.freeze()
        suite = trusted("def test_x():\n    assert open('/home/agent/x').read() == '1\\n'")
        verdicts = [await grade(engine, frozen, suite, run_id="twice") for _ in range(2)]
        await engine.remove_image(frozen)
        assert [verdict.reward for verdict in verdicts] == [1.0, 1.0]
        assert all(verdict.duration_s > 0 for verdict in verdicts)
        assert [record for record in await engine.inventory() if record.run_id == "twice"] == []
