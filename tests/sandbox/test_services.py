"""Real services in real sandboxes, on each engine: they come up, they survive a freeze, and they fail in words."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox import verifier
from sandbox.base import BASE_DOCKERFILE, BASE_PACKAGES, SERVICE_PACKAGES, base_dockerfile, split_base
from sandbox.engine import Engine, Sandbox
from sandbox.errors import ServiceUnhealthy
from sandbox.services import Service, entry_point, start_services
from sandbox.spec import BuildContext, FailureClass, File, SandboxSpec, Suite
from sandbox.verifier import grade
from tests.machine import base_environment

from .conftest import OpenEngine

HOME = "/home/agent"
PG = "/usr/lib/postgresql/15/bin"
NGINX = f"""\
daemon off;
pid {HOME}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {HOME}/t; proxy_temp_path {HOME}/t; fastcgi_temp_path {HOME}/t;
    uwsgi_temp_path {HOME}/t; scgi_temp_path {HOME}/t;
    server {{ listen 127.0.0.1:8080; location / {{ return 200 "served\\n"; }} }}
}}
"""
SSHD = f"""\
Port 2222
ListenAddress 127.0.0.1
HostKey {HOME}/host_key
AuthorizedKeysFile {HOME}/user_key.pub
UsePAM no
"""
SERVICES = (
    Service(
        name="postgresql",
        command=f"bash -c 'rm -f db/postmaster.pid; exec {PG}/postgres -D db -k {HOME} -c listen_addresses='",
        check=f"{PG}/pg_isready -h {HOME}",
        timeout_s=120,
    ),
    Service(
        name="redis",
        command=f"redis-server --port 6380 --dir {HOME} --appendonly yes",
        check="redis-cli -p 6380 ping | grep PONG",
        timeout_s=120,
    ),
    Service(
        name="nginx",
        command=f"nginx -e stderr -c {HOME}/nginx.conf",
        check="curl -sf http://127.0.0.1:8080/",
        timeout_s=120,
    ),
    Service(
        name="cron",
        command="fakeroot cron -f",
        check="test -s /run/crond.pid && kill -0 $(cat /run/crond.pid)",
        timeout_s=120,
    ),
    Service(
        name="sshd",
        command=f"/usr/sbin/sshd -D -e -f {HOME}/sshd_config",
        check="ssh-keyscan -p 2222 127.0.0.1 | grep ed25519",
        timeout_s=120,
    ),
)
SCRIPTS, ENTRY = entry_point(SERVICES)
CONTEXT = BuildContext(
    dockerfile=base_dockerfile(["postgresql"])
    + "RUN chmod 1777 /var/spool/cron/crontabs && touch /run/crond.reboot\n"
    + "RUN install -o agent /dev/null /run/crond.pid\n"
    + f"COPY --chown=agent:agent nginx.conf sshd_config {HOME}/\n"
    + f"USER agent\nWORKDIR {HOME}\n"
    + f"RUN {PG}/initdb -D db -A trust --no-sync --wal-segsize=1 >/dev/null\n"
    + "RUN for key in host user; do ssh-keygen -q -t ed25519 -N '' -f ${key}_key; done\n"
    + ENTRY,
    files=(
        File(path="nginx.conf", data=NGINX.encode()),
        File(path="sshd_config", data=SSHD.encode()),
        *SCRIPTS,
    ),
)
USE = f"""\
set -e
psql -qh {HOME} -d postgres -c 'CREATE TABLE t (x int); INSERT INTO t VALUES (41)'
redis-cli -p 6380 set key value >/dev/null
curl -sf http://127.0.0.1:8080/
echo '5 4 * * * true' | crontab -
options='-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR'
ssh $options -p 2222 -i user_key agent@127.0.0.1 id -un
"""
TESTS = f"""\
import subprocess


def agent(command):
    who = dict(user=1000, group=1000, extra_groups=[])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd="{HOME}", **who)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows():
    assert agent("psql -Ath {HOME} -d postgres -c 'SELECT x FROM t'") == "41\\n"


def test_key():
    assert agent("redis-cli -p 6380 get key") == "value\\n"


def test_page():
    assert agent("curl -sf http://127.0.0.1:8080/") == "served\\n"


def test_crontab():
    assert agent("crontab -l && pgrep -cx cron") == "5 4 * * * true\\n1\\n"


def test_banner():
    assert "ed25519" in agent("ssh-keyscan -p 2222 127.0.0.1")
"""
SUITE = Suite(files=(File(path="test_outputs.py", data=TESTS.encode()),))


@asynccontextmanager
async def started(engine: Engine, image: str) -> AsyncIterator[Sandbox]:
    async with await engine.create(SandboxSpec(image=image, run_id="services", purpose="test")) as sandbox:
        yield sandbox


async def test_five_services_are_healthy_and_come_up_again_on_what_was_frozen(open_any: OpenEngine) -> None:
    base_environment(SERVICE_PACKAGES)
    async with open_any() as (engine, _):
        built = await engine.build(CONTEXT)
        assert built.ok, f"{built.failed_step}: {built.log_tail}"
        async with started(engine, built.image) as sandbox:
            await start_services(sandbox, SERVICES)
            session = await sandbox.open_session()
            used = await session.run(USE, timeout_s=60)
            assert (used.exit_code, used.output) == (0, "served\nagent\n")
            await session.aclose()
            frozen = await sandbox.freeze()
        verdict = await grade(engine, frozen, SUITE, services=SERVICES, run_id="services")
        assert [(test.name, test.message) for test in verdict.tests if test.outcome != "passed"] == []
        assert verdict.reward == 1.0
        without = await grade(engine, frozen, SUITE, run_id="services")
        assert without.reward == 0.0
        await engine.remove_image(frozen)
        async with started(engine, built.image) as sandbox:  # as another runner starts them: by the entry point
            done = await sandbox.exec(["/usr/local/bin/start-services", "redis-cli", "-p", "6380", "ping"])
            assert (done.exit_code, done.stdout) == (0, b"PONG\n"), done.stderr
        await engine.remove_image(built.image)


@pytest.mark.parametrize(
    ("command", "check", "timeout_s", "said"),
    [
        ("bash -c 'echo broken config; exit 3'", "false", 120, "service a ended before it was healthy"),
        ("sleep 60", "echo not yet; false", 3, "service a is not healthy after 3 s"),
        ("sleep 60", "sleep 60", 1, "service a is not healthy after 1 s"),
    ],
)
async def test_a_service_that_does_not_come_up_says_why(
    open_any: OpenEngine, command: str, check: str, timeout_s: int, said: str
) -> None:
    service = Service(name="a", command=command, check=check, timeout_s=timeout_s)
    async with open_any() as (engine, image), started(engine, image) as sandbox:
        with pytest.raises(ServiceUnhealthy, match=said) as failure:
            await start_services(sandbox, [service])
        assert ("broken config" in str(failure.value)) == ("broken" in command)
        assert ("not yet" in str(failure.value)) == ("not yet" in check)


async def test_a_service_that_the_agent_broke_is_the_agents_failure(open_any: OpenEngine) -> None:
    service = Service(name="a", command=f"bash {HOME}/serve.sh", check="grep up marker", timeout_s=120)
    dead = Service(name="b", command=f"bash {HOME}/serve.sh", check="false", timeout_s=120)
    test = b"def test_marker():\n    assert open('/home/agent/marker').read() == 'up\\n'\n"
    suite = Suite(files=(File(path="test_outputs.py", data=test),))
    async with open_any() as (engine, image):
        async with started(engine, image) as sandbox:
            script = File(path=f"{HOME}/serve.sh", data=b"echo up > ~/marker; exec sleep 60", owner="agent")
            await sandbox.put([script, File(path=f"{HOME}/marker", data=b"down\n", owner="agent")])
            sound = await sandbox.freeze()
        async with started(engine, sound) as sandbox:
            await sandbox.put([File(path=f"{HOME}/serve.sh", data=b"echo no such option; exit 1", owner="agent")])
            broken = await sandbox.freeze()
        verdict = await grade(engine, broken, suite, services=[dead], run_id="services")
        assert (verdict.reward, verdict.failure) == (0.0, FailureClass.AGENT_FAIL)
        assert "no such option" in verdict.detail
        assert (await grade(engine, sound, suite, services=[service], run_id="services")).reward == 1.0
        await engine.remove_image(broken)
        await engine.remove_image(sound)


async def test_a_service_that_was_slow_once_does_not_cost_the_reward(
    open_any: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "bash -c 'echo up > ~/marker; exec sleep 60'"
    service = Service(name="a", command=command, check="grep up marker", timeout_s=120)
    test = b"def test_marker():\n    assert open('/home/agent/marker').read() == 'up\\n'\n"
    seen: list[str] = []

    async def slow_once(sandbox: Sandbox, services: Sequence[Service]) -> None:
        seen.append(sandbox.id)
        if len(seen) == 1:
            raise ServiceUnhealthy(sandbox.id, "service a is not healthy after 120 s")
        await start_services(sandbox, services)

    monkeypatch.setattr(verifier, "start_services", slow_once)
    async with open_any() as (engine, image):
        async with started(engine, image) as sandbox:
            frozen = await sandbox.freeze()
        suite = Suite(files=(File(path="test_outputs.py", data=test),))
        verdict = await grade(engine, frozen, suite, services=[service], run_id="services")
        await engine.remove_image(frozen)
    assert (verdict.reward, len(set(seen))) == (1.0, 2)


async def test_packages_that_do_not_exist_are_a_failed_build(
    open_any: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'E: Unable to locate package no-such-package'\nexit 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    async with open_any() as (engine, _):
        built = await engine.build(BuildContext(dockerfile=base_dockerfile(["no-such-package"])))
    assert not built.ok
    assert "no-such-package" in built.failed_step
    assert "Unable to locate package" in built.log_tail


def test_packages_are_read_back_from_the_first_lines() -> None:
    assert split_base(base_dockerfile(["zsh", "tree"]) + "RUN a\n") == (("tree", "zsh"), "RUN a\n")
    assert split_base(base_dockerfile() + "RUN a\n") == ((), "RUN a\n")
    assert split_base("FROM debian:bookworm-slim\nRUN a\n") is None


def test_any_of_the_service_packages_is_the_same_base() -> None:
    assert base_dockerfile(["redis-server"]) == base_dockerfile(SERVICE_PACKAGES)
    assert base_dockerfile(["redis-server", "tree"]) not in (base_dockerfile(SERVICE_PACKAGES), BASE_DOCKERFILE)
    assert base_dockerfile(BASE_PACKAGES) == BASE_DOCKERFILE
