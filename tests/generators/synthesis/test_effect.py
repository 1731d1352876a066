"""Effects of commands in a real session: what shows, and what leaves no trace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from generators.synthesis.effect import Probe, effect_of
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Sandbox, Session
from sandbox.spec import BuildContext, SandboxSpec
from tests.generators.running import namespace_engine

pytestmark = pytest.mark.namespace


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[tuple[Sandbox, Session]]:
    lines = "RUN mkdir /srv/work && chown agent /srv/work\nUSER agent\nWORKDIR /srv/work\n"
    async with namespace_engine(tmp_path / "engine") as engine:
        built = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE + lines))
        async with await engine.create(SandboxSpec(image=built.image)) as sandbox:
            session = await sandbox.open_session()
            yield sandbox, session
            await session.aclose()


async def test_every_kind_of_effect_and_none(terminal: tuple[Sandbox, Session]) -> None:
    sandbox, session = terminal
    probe, seen = await Probe.attach(sandbox, session), {"known\n"}

    async def effect(command: str) -> str:
        before = await probe.take(0)
        result = await session.run(command)
        return effect_of(before, await probe.take(result.exit_code), result, seen)

    expected = {
        "ls /nowhere": "exit_code",
        "printf 'one' > ~/a": "files",
        "printf 'two' > ~/a": "files",
        "chmod 600 ~/a": "files",
        "touch /tmp/b": "files",
        "mkdir c": "files",
        "cd .": "",
        "wrong=1": "shell",
        "f() { :; }": "shell",
        "umask 077": "shell",
        "set -f": "shell",
        "cat ~/a": "output",
        "echo known": "",
        "true": "",
        "cat ~/a > /dev/null": "",
        "printf two > ~/a": "",
        "touch ~/a": "",
        "f() { :; }; wrong=1": "",
    }
    assert {command: await effect(command) for command in expected} == expected


async def test_a_fingerprint_leaves_the_last_exit_code(terminal: tuple[Sandbox, Session]) -> None:
    sandbox, session = terminal
    probe = await Probe.attach(sandbox, session)
    result = await session.run("(exit 7)")
    await probe.take(result.exit_code)
    assert (await session.run("echo $?")).output == "7\n"
