"""The persistent shell on this machine's own bash: state, framing, time-outs, cancellation, what may break a shell."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from sandbox.conformance.session_cases import SessionCase, run_steps, session_cases
from sandbox.errors import EngineFault
from sandbox.session import ShellSession
from sandbox.spec import CommandResult
from tests.sandbox.local_host import LocalDuplex, LocalHost, usable

pytestmark = [pytest.mark.namespace, pytest.mark.skipif(not usable(), reason="cannot make namespaces")]

NEED_LIMITS = ("process limit", "memory limit")


@pytest.fixture
async def host() -> AsyncIterator[LocalHost]:
    async with LocalHost() as host:
        yield host


@pytest.fixture
async def session(host: LocalHost) -> AsyncIterator[ShellSession]:
    session = await ShellSession.open(host, cwd="/tmp", env={}, output_limit=2000)
    yield session
    await session.aclose()


async def outputs(session: ShellSession, *commands: str) -> list[str]:
    return [(await session.run(command)).output for command in commands]


def ended(
    result: CommandResult, exit_code: int | None = 0, *, restarted: bool = False, timed_out: bool = False
) -> bool:
    return (result.exit_code, result.shell_restarted, result.timed_out) == (exit_code, restarted, timed_out)


@pytest.mark.parametrize(
    "case", [case for case in session_cases() if case.name not in NEED_LIMITS], ids=lambda case: case.name
)
async def test_case(case: SessionCase, session: ShellSession) -> None:
    assert await run_steps(session, case) == []


# The command is data


async def test_every_byte_but_nul_arrives(session: ShellSession) -> None:
    data = bytes(byte for byte in range(1, 256) if byte not in b"'")
    command = b"printf %s '" + data + b"' | od -An -v -tx1 | tr -d ' \\n'"
    assert (await session.run(command.decode("utf-8", "surrogateescape"))).output == data.hex()


async def test_a_script_of_a_megabyte_arrives_whole(session: ShellSession) -> None:
    body = "x'\"$`\\y\t!!\n" * 95_000
    await session.run(f"cat > /tmp/big <<'EOF'\n{body}EOF", timeout_s=60)
    assert (await session.run("md5sum < /tmp/big")).output[:32] == hashlib.md5(body.encode()).hexdigest()


async def test_nul_is_refused(session: ShellSession) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await session.run("echo \0")


@pytest.mark.parametrize("data", [b"", b"a\0b\xff", b"one\ntwo", bytes(range(256)) * 400])
async def test_standard_input_arrives_to_the_byte(session: ShellSession, data: bytes) -> None:
    result = await session.run("md5sum", stdin=data)
    assert result.output[:32] == hashlib.md5(data).hexdigest()
    assert (await session.run("cat")).output == ""


# State, as a person has it


async def test_the_last_exit_code_is_there_for_the_next_command(session: ShellSession) -> None:
    await session.run("(exit 42)")
    assert await outputs(session, "echo $?", "echo $?") == ["42\n", "0\n"]


async def test_an_error_is_told_as_at_a_prompt(session: ShellSession) -> None:
    assert await outputs(session, "no-such-x", "echo ${no_x:?is missing}; echo on") == [
        "bash: no-such-x: command not found\n",
        "bash: no_x: is missing\n",
    ]


async def test_alias_return_and_break_at_the_top(session: ShellSession) -> None:
    await session.run("alias greet='echo hi'")
    assert await outputs(session, "greet") == ["hi\n"]
    assert ended(await session.run("return 5"), 5)
    await session.run("break; continue")
    assert await outputs(session, "echo next") == ["next\n"]


async def test_posix_mode_and_shell_options_are_the_commands_own(session: ShellSession) -> None:
    probe = "shopt -po posix; shopt -p inherit_errexit; echo ${POSIXLY_CORRECT-unset}"
    default = "set +o posix\nshopt -u inherit_errexit\nunset\n"
    assert await outputs(session, probe, probe) == [default, default]
    await session.run("set -o posix")
    assert (await outputs(session, "shopt -po posix")) == ["set -o posix\n"]
    await session.run("set +o posix; shopt -s inherit_errexit")
    assert (await outputs(session, "shopt -p inherit_errexit")) == ["shopt -s inherit_errexit\n"]


async def test_the_protocol_leaves_no_trace_in_the_environment(session: ShellSession) -> None:
    before, after = await outputs(session, "env | sort", "env | sort")
    assert before == after
    assert "termloom" not in before.lower()


async def test_output_of_a_background_job_between_commands_belongs_to_none(session: ShellSession) -> None:
    await session.run("mkfifo /tmp/go /tmp/done; (read x < /tmp/go; echo LATE; echo > /tmp/done) &")
    with anyio.fail_after(30):
        await session._host.exec(["bash", "-c", "echo > /tmp/go; read x < /tmp/done"])
    assert await outputs(session, "echo next") == ["next\n"]


# What may break a frame


@pytest.mark.parametrize(
    "spoiler",
    [
        "builtin() { :; }; command() { :; }; unset() { :; }; eval() { :; }; printf() { :; }; exit() { :; }",
        "alias builtin=false eval=false .=false printf=false read=false",
        "IFS=0123456789abcdef; set -u; set -f; set -C; set -k; set -o pipefail",
        "shopt -s extdebug nullglob failglob extglob; set -T -E",
        "exec 10</etc/passwd 11>/tmp/x 12<&0",
        "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone",
        "set -n; set -v",
        "unset BASH_EXECUTION_STRING PWD OLDPWD HOME PATH SHELLOPTS; PATH=/usr/bin:/bin",
        "readonly BASH_EXECUTION_STRING",
        "ulimit -n 20",
        "kill 0; kill -TERM $$",
        "trap '' TERM INT HUP",
    ],
)
async def test_a_spoiled_shell_still_gives_true_results(session: ShellSession, spoiler: str) -> None:
    await session.run(spoiler)
    command = "/bin/sh -c 'echo next; exit 3'"
    result = await session.run(command)
    assert (result.exit_code, result.output.splitlines()[-1]) == (3, "next")
    assert (await session.run("true")).exit_code == 0


async def test_without_its_supervisor_a_shell_is_replaced_and_that_is_told(session: ShellSession) -> None:
    await session.run("kill -9 $PPID")
    result = await session.run("echo next")
    assert result.output == "next\n" or result.shell_restarted
    assert await outputs(session, "echo again") == ["again\n"]


@pytest.mark.parametrize("spoiler", ["exec 58>&-", "exec 59>&-", "readonly POSIXLY_CORRECT", "kill -STOP $$"])
async def test_a_shell_that_cannot_answer_is_replaced_or_brought_back(session: ShellSession, spoiler: str) -> None:
    result = await session.run(spoiler, timeout_s=1)
    assert result.shell_restarted or result.timed_out
    assert await outputs(session, "echo next") == ["next\n"]


async def test_a_shell_that_died_between_commands_is_replaced_and_the_command_runs(session: ShellSession) -> None:
    pid = (await session.run("echo $$")).output.strip()
    await session._host.exec(["bash", "-c", f"kill -9 {pid}"])
    result = await session.run("echo here")
    assert (result.output, result.shell_restarted) == ("here\n", True)


async def test_the_new_shell_starts_where_the_last_command_ended(session: ShellSession) -> None:
    await session.run("mkdir -p '/tmp/a b\n' && cd '/tmp/a b\n'")
    assert ended(await session.run("cd /usr; exit 3"), 3, restarted=True)
    assert await outputs(session, "pwd") == ["/tmp/a b\n\n"]
    await session.run("rmdir '/tmp/a b\n'")
    await session.run("kill -9 $$")
    assert await outputs(session, "pwd") == ["/tmp\n"]


async def test_traps_of_the_command_do_not_see_the_protocol(session: ShellSession) -> None:
    await session.run("trap 'echo dbg' DEBUG; trap 'echo bye' EXIT")
    assert await outputs(session, "true", "exit 9") == ["", "bye\n"]


# Time-outs


@pytest.mark.parametrize(
    "command",
    [
        "sleep 61; echo never > /tmp/never",
        "for i in 1 2 3; do sleep 61; done\necho never > /tmp/never",
        "f() { sleep 61; echo never > /tmp/never; f; }; f",
        "(sleep 61; echo never > /tmp/never); echo never > /tmp/never",
        "x=$(sleep 61); echo never > /tmp/never",
        "sleep 61 | cat; echo never > /tmp/never",
        "sleep 61 & wait; echo never > /tmp/never",
        "while :; do :; done; echo never > /tmp/never",
        "mkfifo /tmp/f; read x < /tmp/f; echo never > /tmp/never",
        "trap '' INT TERM; sleep 61; echo never > /tmp/never",
        "trap 'echo caught' INT; sleep 61; echo never > /tmp/never",
        "setsid sleep 61 & disown; sleep 62; echo never > /tmp/never",
    ],
)
async def test_a_time_out_stops_the_whole_command_and_keeps_the_state(
    session: ShellSession, host: LocalHost, command: str
) -> None:
    await session.run("KEEP=me; cd /usr; sleep 300 & JOB=$!")
    assert ended(await session.run(command, timeout_s=2.0), None, timed_out=True)
    assert await outputs(session, "echo $KEEP $PWD; kill -0 $JOB && ls /tmp/never 2>&1") == [
        "me /usr\nls: cannot access '/tmp/never': No such file or directory\n"
    ]
    assert [line for line in host.processes() if line.startswith(("sleep 6", "cat"))] == []


async def test_a_shell_that_ignores_the_interrupt_is_killed_before_it_goes_on(session: ShellSession) -> None:
    result = await session.run("trap '' VTALRM; sleep 61; echo never > /tmp/never", timeout_s=0.3)
    assert ended(result, None, restarted=True, timed_out=True)
    assert ended(await session.run("test -e /tmp/never"), 1)


async def test_output_before_the_time_out_is_kept(session: ShellSession) -> None:
    result = await session.run("echo before; sleep 61; echo after", timeout_s=2.0)
    assert result.output == "before\n"
    assert 2.0 <= result.duration_s < 61


# Cancellation and closing


async def run_and_cancel(session: ShellSession, host: LocalHost, command: str) -> None:
    """Run a command that sleeps for 61 seconds, and cancel it once it does."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(session.run, command, timeout_s=60))
            while "sleep 61" not in host.processes():
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


async def test_a_cancelled_command_is_stopped_at_the_next_use(session: ShellSession, host: LocalHost) -> None:
    await session.run("KEEP=me")
    await run_and_cancel(session, host, "sleep 61; echo never > /tmp/never")
    assert "sleep 61" in host.processes()
    assert await outputs(session, "echo $KEEP; ls /tmp") == ["me\n"]
    assert "sleep 61" not in host.processes()


async def test_a_command_that_is_cancelled_before_anything_of_it_was_read_is_stopped(
    session: ShellSession, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_unread(command: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LocalDuplex, "receive", lambda _: anyio.sleep_forever())
            await run_and_cancel(session, host, command)

    await session.run("KEEP=me")
    await run_unread("sleep 61")
    assert await outputs(session, "echo $KEEP") == ["me\n"]
    assert "sleep 61" not in host.processes()
    await run_unread("sleep 61")
    await session.aclose()
    assert host.processes() == []


async def test_a_command_cancelled_at_any_point_leaves_the_session_usable(session: ShellSession) -> None:
    for step in range(12):
        with anyio.CancelScope() as scope:
            await _cancelled_after(scope, step, session)
        assert await outputs(session, "echo next") == ["next\n"]


async def _cancelled_after(scope: anyio.CancelScope, steps: int, session: ShellSession) -> None:
    """Run a command in `scope` and cancel it after so many turns of the event loop."""

    async def cancel() -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        await session.run("echo cancelled; sleep 0.01")


async def test_closing_after_a_cancelled_command_leaves_nothing(host: LocalHost) -> None:
    session = await ShellSession.open(host, cwd=None, env={}, output_limit=2000)
    await run_and_cancel(session, host, "trap '' TERM; sleep 61")
    await session.aclose()
    await session.aclose()
    assert host.processes() == []
    with pytest.raises(RuntimeError, match="closed"):
        await session.run("true")


async def test_closing_lets_background_jobs_live(session: ShellSession, host: LocalHost) -> None:
    await session.run("trap 'echo bye > /tmp/bye' EXIT; sleep 300 &")
    await session.aclose()
    assert host.processes() == ["sleep 300"]


async def test_one_command_at_a_time(session: ShellSession) -> None:
    refused: list[bool] = []

    async def second() -> None:
        with contextlib.suppress(RuntimeError):
            await session.run("true")
            return
        refused.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, "read -t 0.2 x < <(sleep 0.3)")
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(second)
    assert refused == [True]


async def test_a_directory_that_is_not_there_is_a_fault(host: LocalHost) -> None:
    with pytest.raises(EngineFault, match="no directory"):
        await ShellSession.open(host, cwd="/no/such", env={}, output_limit=2000)


async def test_the_environment_of_the_session(host: LocalHost) -> None:
    session = await ShellSession.open(host, cwd="/", env={"A": "x y\n"}, output_limit=2000)
    assert await outputs(session, 'echo "$A"; kill -9 $$', 'echo "$A"') == ["x y\n\n", "x y\n\n"]
    await session.aclose()
