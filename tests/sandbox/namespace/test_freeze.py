"""Freezing, stacking on what was frozen, and grading on it."""

import pytest

from sandbox.errors import EngineFault, SandboxLost
from sandbox.spec import TRUSTED_DIR, File, Profile, SandboxSpec

pytestmark = [pytest.mark.namespace, pytest.mark.timeout(120)]


async def frozen(engine, image: str, script: str) -> str:
    async with await engine.create(SandboxSpec(image=image)) as sandbox:
        result = await sandbox.exec(["bash", "-c", script])
        assert result.exit_code == 0, result.stderr
        return await sandbox.freeze()


async def read(engine, image: str, script: str) -> str:
    async with await engine.create(SandboxSpec(image=image)) as sandbox:
        return (await sandbox.exec(["bash", "-c", script])).stdout.decode()


async def test_freeze_kills_everything_and_keeps_the_files(namespace_engine):
    engine = namespace_engine
    sandbox = await engine.create(SandboxSpec(image=engine.images.base.id))
    process = await sandbox.spawn(["bash", "-c", "while :; do echo x >> ~/log; sleep 0.01; done"], env={}, cwd="/")
    while not await sandbox.get("/home/agent/log"):
        pass
    image = await sandbox.freeze()
    assert await sandbox.freeze() == image
    assert engine._cgroups.processes(sandbox.id) == set()
    with pytest.raises(SandboxLost, match="frozen"):
        await process.receive()
    with pytest.raises(SandboxLost, match="frozen"):
        await sandbox.exec(["true"])
    await process.aclose()
    await sandbox.remove()
    lengths = [await read(engine, image, "wc -c < ~/log") for _ in range(2)]
    assert lengths[0] == lengths[1] != "0\n"


async def test_attempts_fork_from_one_frozen_image_and_stack(namespace_engine):
    engine = namespace_engine
    first = await frozen(engine, engine.images.base.id, "echo 1 > ~/a; mkdir ~/d; touch ~/d/x ~/d/y; echo 1 > ~/gone")
    left = await frozen(engine, first, "echo left > ~/a; rm ~/gone; rm -r ~/d; mkdir ~/d; touch ~/d/z")
    right = await frozen(engine, first, "echo right >> ~/a; mv ~/d ~/e")
    assert await read(engine, first, "cat ~/a; ls ~ ~/d") == "1\n/home/agent:\na\nd\ngone\n\n/home/agent/d:\nx\ny\n"
    assert await read(engine, left, "cat ~/a; ls ~ ~/d") == "left\n/home/agent:\na\nd\n\n/home/agent/d:\nz\n"
    assert (
        await read(engine, right, "cat ~/a; ls ~ ~/e") == "1\nright\n/home/agent:\na\ne\ngone\n\n/home/agent/e:\nx\ny\n"
    )


async def test_twenty_layers_stack(namespace_engine):
    image = namespace_engine.images.base.id
    for number in range(20):
        image = await frozen(namespace_engine, image, f"echo {number} >> ~/log")
    assert (await read(namespace_engine, image, "cat ~/log")).split() == [str(number) for number in range(20)]


async def test_removing_an_image_spares_those_who_stand_on_it(namespace_engine):
    engine = namespace_engine
    first = await frozen(engine, engine.images.base.id, "echo first > ~/a")
    second = await frozen(engine, first, "echo second > ~/b")
    running = await engine.create(SandboxSpec(image=second))
    await engine.remove_image(first)
    await engine.remove_image(first)
    with pytest.raises(EngineFault, match="no image"):
        await engine.create(SandboxSpec(image=first))
    assert await read(engine, second, "cat ~/a ~/b") == "first\nsecond\n"
    await engine.remove_image(second)
    assert await running.get("/home/agent/a") == b"first\n"
    await running.remove()
    await engine.remove_image(engine.images.base.id)
    assert await read(engine, engine.images.base.id, "echo still") == "still\n"


async def test_a_grading_sandbox_is_swept_and_sees_the_trusted_tree(namespace_engine, trusted):
    engine = namespace_engine
    builder = await engine.create(SandboxSpec(image=engine.images.base.id, profile=Profile.BUILD))
    async with builder:
        script = (
            "mkdir -p /tests/deep /keep; echo fake > /tests/deep/test.py; ln -s /keep /logs; echo 1 > /keep/file;"
            f"ln -s /keep {TRUSTED_DIR}; echo /evil.so > /etc/ld.so.preload; echo secret > /root/s; chmod 600 /root/s"
        )
        result = await builder.exec(["sh", "-c", script], user="root")
        assert result.exit_code == 0, result.stderr
        image = await builder.freeze()
    async with await engine.create(SandboxSpec(image=image, profile=Profile.GRADE)) as grader:
        script = (
            f"cat {TRUSTED_DIR}/marker /root/s /keep/file; ls -d /tests /logs /etc/ld.so.preload;"
            f"touch {TRUSTED_DIR}/x; rm {TRUSTED_DIR}/marker; su agent -c id"
        )
        result = await grader.exec(["sh", "-c", script], user="root")
        assert result.stdout.decode().splitlines()[:3] == ["ours", "secret", "1"]
        errors = result.stderr.decode()
        assert errors.count("No such file") == 3
        assert errors.count("Read-only file system") == 2
        await grader.put([File(path="/tests/test.py", data=b"pass\n")])
        assert await grader.get("/tests/test.py") == b"pass\n"
    assert (trusted / "marker").read_text() == "ours\n"


async def test_an_agent_sandbox_has_no_trusted_tree(namespace_engine):
    assert (
        await read(namespace_engine, namespace_engine.images.base.id, f"ls -d {TRUSTED_DIR} || echo none") == "none\n"
    )
