"""Building images from Dockerfiles."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandbox.base import BASE_DOCKERFILE
from sandbox.errors import BuildUnsupported, EngineFault, ImageMissing
from sandbox.namespace.engine import NamespaceEngine
from sandbox.spec import BuildContext, BuildResult, File, SandboxSpec

pytestmark = [pytest.mark.namespace, pytest.mark.timeout(120)]

FILES = (
    File(path="files/data/in.csv", data=b"a,b\n1,2\n"),
    File(path="files/run.sh", data=b"#!/bin/sh\ncat data/in.csv\n", mode=0o755),
    File(path="notes.txt", data=b"notes\n"),
)


async def build(engine: NamespaceEngine, text: str, **options) -> BuildResult:
    return await engine.build(BuildContext(dockerfile=text, **({"files": FILES} | options)))


async def output(engine: NamespaceEngine, image: str, script: str) -> str:
    async with await engine.create(SandboxSpec(image=image)) as sandbox:
        result = await sandbox.exec(["bash", "-c", script])
        return (result.stdout + result.stderr).decode()


async def test_a_task_environment_builds_and_is_the_default_of_its_sessions(namespace_engine):
    text = BASE_DOCKERFILE + (
        "ENV LEVEL=3\n"
        "COPY --chown=agent:agent files/ /home/agent/work/\n"
        "USER agent\n"
        "WORKDIR /home/agent/work\n"
        "RUN ./run.sh > out.csv && id -un >> out.csv\n"
    )
    result = await build(namespace_engine, text)
    assert result.ok, result
    assert not result.cached
    shown = await output(namespace_engine, result.image, "pwd; echo $LEVEL; cat out.csv; stat -c '%U %a %n' * .")
    assert shown == (
        "/home/agent/work\n3\na,b\n1,2\nagent\nagent 755 data\nagent 644 out.csv\nagent 755 run.sh\nagent 755 .\n"
    )


async def test_root_steps_have_what_a_package_manager_needs(namespace_engine):
    text = (
        "FROM termloom-base\n"
        "RUN useradd -m -u 1234 worker && install -o worker -g worker -m 600 /etc/hosts /srv/hosts\n"
        "USER worker\nRUN id -un > ~/me; echo $HOME >> /home/worker/me; grep CapEff /proc/self/status >> ~/me\n"
        "USER 1234:0\nRUN id -g > ~/group\n"
        "USER root\nRUN rm /usr/bin/less && chown -R root:agent /home/worker && chmod 755 /home/worker\n"
    )
    result = await build(namespace_engine, text)
    assert result.ok, result
    shown = await output(
        namespace_engine, result.image, "cat ~worker/me ~worker/group; stat -c %U /srv/hosts; ls /usr/bin/less"
    )
    assert shown.splitlines()[:5] == ["worker", "/home/worker", f"CapEff:\t{'0' * 16}", "0", "worker"]
    assert "No such file" in shown


async def test_the_bare_base_is_the_base_image(namespace_engine):
    result = await build(namespace_engine, BASE_DOCKERFILE)
    assert (result.image, result.cached) == (namespace_engine.images.base.id, True)


async def test_a_failing_step_tells_itself_its_code_and_the_end_of_its_log(namespace_engine, state_dir):
    result = await build(
        namespace_engine, "FROM termloom-base\nRUN true\nRUN seq 1000 >&2; echo oops >&2; exit 3\nRUN true\n"
    )
    assert not result.ok
    assert (result.failed_step, result.exit_code) == ("RUN seq 1000 >&2; echo oops >&2; exit 3", 3)
    lines = result.log_tail.splitlines()
    assert len(lines) == 60
    assert "oops" in lines
    assert await namespace_engine.inventory() == []
    assert list((state_dir / "images").iterdir()) == []


async def test_mistakes_of_the_author_are_failed_builds(namespace_engine):
    for text, step in (
        ("FROM termloom-base\nCOPY absent /x\n", "COPY absent /x"),
        ("FROM termloom-base\nCOPY --chown=nobody-here notes.txt /x\n", "COPY --chown=nobody-here notes.txt /x"),
        ("FROM termloom-base\nCOPY notes.txt /etc/passwd/x\n", "COPY notes.txt /etc/passwd/x"),
        ("FROM termloom-base\nFLY away\n", "FLY away"),
    ):
        result = await build(namespace_engine, text)
        assert (result.ok, result.failed_step, bool(result.log_tail)) == (False, step, True), result


async def test_an_unknown_user_in_run_fails_the_step(namespace_engine):
    result = await build(namespace_engine, "FROM termloom-base\nUSER ghost\nRUN true\n")
    assert (result.ok, result.failed_step) == (False, "RUN true")
    assert "ghost" in result.log_tail


async def test_a_step_without_end_is_stopped(namespace_engine):
    result = await build(namespace_engine, "FROM termloom-base\nRUN sleep 1000\n", timeout_s=1.0)
    assert (result.ok, result.exit_code, result.failed_step) == (False, None, "RUN sleep 1000")
    assert "1 s" in result.log_tail


async def test_foreign_images_are_refused_with_a_remedy(namespace_engine):
    with pytest.raises(BuildUnsupported, match=r"FROM ubuntu:24\.04.*Docker"):
        await build(namespace_engine, "FROM ubuntu:24.04\nRUN true\n")


async def test_equal_builds_are_found_again_and_different_ones_are_not(namespace_engine, state_dir, rootfs):
    text = "FROM termloom-base\nCOPY notes.txt /srv/\n"
    first = await build(namespace_engine, text)
    again = await build(namespace_engine, text)
    assert (again.image, again.cached) == (first.image, True)
    other = await build(namespace_engine, text, files=(File(path="notes.txt", data=b"other\n"),))
    assert other.image != first.image
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as second:
        assert (await build(second, text)).cached
        assert await output(second, other.image, "cat /srv/notes.txt") == "other\n"
        await second.remove_image(first.image)
        await second.remove_image(first.image)
        assert not (await build(second, text)).cached


async def test_an_image_in_use_is_not_removed_by_another_engine(namespace_engine, state_dir, rootfs):
    built = await build(namespace_engine, "FROM termloom-base\nCOPY notes.txt /srv/\n")
    spec = SandboxSpec(image=built.image)
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None) as other:
        async with await namespace_engine.create(spec) as sandbox:
            await other.remove_image(built.image)
            assert await sandbox.get("/srv/notes.txt") == b"notes\n"
            frozen = await sandbox.freeze()
        await other.remove_image(built.image)
        assert await output(namespace_engine, frozen, "cat /srv/notes.txt") == "notes\n"
        await namespace_engine.remove_image(frozen)
        await other.remove_image(built.image)
        with pytest.raises(ImageMissing, match=built.image):
            await namespace_engine.create(spec)
    assert await namespace_engine.inventory() == []
    assert list((state_dir / "images").iterdir()) == []


async def test_an_image_whose_description_cannot_be_read_is_built_again(namespace_engine, state_dir):
    text = "FROM termloom-base\nCOPY notes.txt /srv/\n"
    first = await build(namespace_engine, text)
    (state_dir / "images" / first.image / "image.json").write_text('{"version": 1, "boot": "", "config": {}}')
    again = await build(namespace_engine, text)
    assert (again.image, again.cached) == (first.image, False)


async def test_an_image_whose_removal_is_interrupted_is_not_found_again(
    namespace_engine, state_dir, rootfs, monkeypatch
):
    text = "FROM termloom-base\nCOPY notes.txt /srv/\n"
    first = await build(namespace_engine, text)
    with monkeypatch.context() as killed:
        killed.setattr("sandbox.namespace.images.shutil.rmtree", lambda *_, **__: None)
        await namespace_engine.remove_image(first.image)
    assert not (await build(namespace_engine, text)).cached
    assert list((state_dir / "images").glob(".gone-*"))
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=None):
        assert not list((state_dir / "images").glob(".gone-*"))


async def test_equal_builds_at_once_are_one_and_survive_the_first_caller(namespace_engine):
    text = "FROM termloom-base\nRUN sleep 0.3; date +%s%N > /srv/stamp\n"
    results: list[BuildResult] = []
    async with anyio.create_task_group() as tasks:
        first = anyio.CancelScope()

        async def leader() -> None:
            with first:
                await build(namespace_engine, text)

        async def follower() -> None:
            results.append(await build(namespace_engine, text))

        tasks.start_soon(leader)
        for _ in range(4):
            tasks.start_soon(follower)
        while not (results or await namespace_engine.inventory()):
            await anyio.lowlevel.checkpoint()
        first.cancel()
    assert len({result.image for result in results}) == 1
    assert len(results) == 4
    assert all(result.ok for result in results)


async def test_network_is_what_the_context_says(namespace_engine):
    text = "FROM termloom-base\nRUN tail -n +3 /proc/net/dev | wc -l > /srv/devices\n"
    closed, opened = await build(namespace_engine, text), await build(namespace_engine, text, network=True)
    assert await output(namespace_engine, closed.image, "cat /srv/devices") == "1\n"
    assert int(await output(namespace_engine, opened.image, "cat /srv/devices")) > 1


async def test_copy_knows_a_directory_when_it_meets_one(namespace_engine):
    text = (
        "FROM termloom-base\nCOPY notes.txt /srv\nCOPY notes.txt /opt/name\n"
        "COPY <<EOF /opt/made\nhome is ${HOME:-none}\nEOF\n"
        "COPY f*/*.sh notes.txt bin/\nRUN <<EOF\nset -e\necho one > /opt/one\ncat /opt/one\nEOF\n"
    )
    result = await build(namespace_engine, text)
    assert result.ok, result
    shown = await output(
        namespace_engine, result.image, "cat /srv/notes.txt /opt/name /opt/made /opt/one; ls /bin/run.sh"
    )
    assert shown == "notes\nnotes\nhome is none\none\n/bin/run.sh\n"


@pytest.fixture
def small_disk(state_dir: Path) -> Iterator[None]:
    """The engine's state on a disk of 3 MB."""
    state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", state_dir], check=True)
    yield
    subprocess.run(["umount", state_dir], check=True)


@pytest.mark.parametrize("step", ["RUN head -c 4M /dev/zero > /big", "COPY big /"])
async def test_a_step_that_fails_on_a_full_disk_is_not_the_authors_fault(small_disk, state_dir, rootfs, trusted, step):
    async with NamespaceEngine(state_dir=state_dir, rootfs=rootfs, trusted=trusted) as engine:
        with pytest.raises(EngineFault, match="no space is left"):
            await build(engine, f"FROM termloom-base\n{step}\n", files=(File(path="big", data=b"x" * (4 << 20)),))
        assert (await build(engine, "FROM termloom-base\nRUN echo > /small\n")).ok
