"""`termloom gc` on the daemonless engine: what a dead process left goes, what a live one uses stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runtime.gc_command import gc
from runtime.options import Common
from sandbox.namespace.leases import Leases
from tests.machine import base_environment, need_namespaces

HOLDER = """
import sys
from pathlib import Path
import anyio
from sandbox.namespace.engine import NamespaceEngine
from sandbox.spec import BuildContext, Limits, SandboxSpec

async def main(state, rootfs):
    async with NamespaceEngine(state_dir=Path(state), rootfs=Path(rootfs), trusted=None) as engine:
        built = await engine.build(BuildContext(dockerfile="FROM termloom-base\\n", files=()))
        spec = SandboxSpec(image=built.image, limits=Limits(), run_id="left", purpose="test")
        async with await engine.create(spec):
            print("holding", flush=True)
            await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""

pytestmark = pytest.mark.namespace


@pytest.fixture
def holder(tmp_path: Path):
    need_namespaces()
    rootfs = base_environment().rootfs
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), str(rootfs)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "holding\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def dead_process() -> int:
    with subprocess.Popen(["true"]) as child:
        pass
    return child.pid


def common(state: Path) -> Common:
    return Common(sets=[f"paths.state={state}", "sandbox.docker_url=unix:///nowhere"], json=True)


async def test_what_a_dead_process_left_goes_and_what_a_live_one_uses_stays(tmp_path, holder, capsys):
    leases = Leases(tmp_path / "sandboxes")
    (live,) = leases.all()
    boot, _, ticks = live.owner.split(":")
    leases.write(
        msgspec.structs.replace(live, sandbox_id="f" * 16, run_id="gone", owner=f"{boot}:{dead_process()}:{ticks}")
    )
    assert await gc(common=common(tmp_path)) == 0
    removed = json.loads(capsys.readouterr().out)["engines"]["namespace"]["removed"]
    assert [record["run_id"] for record in removed] == ["gone"]
    assert leases.all() == [live]


async def test_all_removes_what_a_live_process_uses(tmp_path, holder, capsys):
    assert await gc(run="another", all_=True, common=common(tmp_path)) == 0
    assert len(Leases(tmp_path / "sandboxes").all()) == 1
    assert await gc(run="left", all_=True, common=common(tmp_path)) == 0
    assert Leases(tmp_path / "sandboxes").all() == []
