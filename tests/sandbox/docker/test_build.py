"""Builds through the engine, and the pure parts of building."""

from __future__ import annotations

import anyio
import pytest

from sandbox.base import BASE_DOCKERFILE, SERVICE_PACKAGES, base_dockerfile
from sandbox.docker.build import BuildLog, PullFailed, check, image_name, split_local_base
from sandbox.docker.client import Client
from sandbox.docker.config import image_facts, volume_refusal
from sandbox.docker.images import image_exists
from sandbox.errors import BuildUnsupported, EngineFault, ImageMissing, TransferRefused
from sandbox.spec import BuildContext, BuildResult, File, SandboxSpec
from tests.sandbox.docker.conftest import LIMITS, OpenEngine, started

docker = pytest.mark.docker


def test_base_lines_to_the_letter_become_one_from() -> None:
    assert split_local_base(BASE_DOCKERFILE + "RUN a\n") == ((), "RUN a\n")
    assert split_local_base("FROM termloom-base\nRUN a\n") == ((), "RUN a\n")
    assert split_local_base(base_dockerfile(["redis-server"]) + "RUN a\n") == (SERVICE_PACKAGES, "RUN a\n")
    assert split_local_base(BASE_DOCKERFILE.replace("bookworm", "trixie")) is None


def test_name_depends_on_everything_that_goes_in() -> None:
    file = File(path="a", data=b"1")
    contexts = [
        BuildContext(dockerfile=""),
        BuildContext(dockerfile="", network=True),
        BuildContext(dockerfile="", files=(file,)),
        BuildContext(dockerfile="", files=(File(path="a", data=b"2"),)),
        BuildContext(dockerfile="", files=(File(path="a", data=b"1", mode=0o755),)),
    ]
    names = {image_name(text, context) for context in contexts for text in ("FROM a\n", "FROM b\n")}
    assert len(names) == 10


def test_log_knows_the_step_and_keeps_the_end() -> None:
    log = BuildLog()
    for text in ("Step 1/2 : FROM a\n", " ---> 0123\n", "Step 2/2 : RUN x\n", *(f"line {n}\n" for n in range(500))):
        log.add({"stream": text})
    log.add({"error": "returned a non-zero code: 3", "errorDetail": {"code": 3, "message": "..."}})
    assert (log.step, log.exit_code, log.built) == ("RUN x", 3, False)
    assert log.tail.splitlines()[-2:] == ["line 499", "returned a non-zero code: 3"]
    assert len(log.tail.splitlines()) <= 60


def log_of(step: str, error: str, *output: str) -> BuildLog:
    log = BuildLog()
    for text in (f"Step 1/2 : {step}\n", *output):
        log.add({"stream": text})
    log.add({"error": error})
    return log


@pytest.mark.parametrize(
    "error",
    [
        "pull access denied for x, repository does not exist or may require 'docker login'",
        "manifest for x:1 not found: manifest unknown: manifest unknown",
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        "Get https://r/v2/x/manifests/1: unauthorized: authentication required",
    ],
)
def test_image_that_cannot_be_had_is_unsupported(error: str) -> None:
    with pytest.raises(BuildUnsupported, match="FROM x:1"):
        check(log_of("FROM x:1", error))


@pytest.mark.parametrize(
    "error",
    [
        "toomanyrequests: You have reached your pull rate limit.",
        "Get https://registry-1.docker.io/v2/: net/http: TLS handshake timeout",
        "Get https://r/v2/: dial tcp: lookup r: i/o timeout",
        "received unexpected HTTP status: 503 Service Unavailable",
        "the build did not finish within 600 s",
    ],
)
def test_image_that_could_not_be_fetched_this_time_is_a_fault(error: str) -> None:
    with pytest.raises(PullFailed):
        check(log_of("FROM x:1", error))


def test_full_disk_of_the_engine_is_a_fault_and_no_failed_step() -> None:
    with pytest.raises(EngineFault, match="no space is left"):
        check(log_of("COPY a /a", "write /a: no space left on device"))
    with pytest.raises(EngineFault, match="no space is left"):
        check(log_of("RUN x", "x returned a non-zero code: 1", "cp: error writing 'a': No space left on device\n"))
    check(log_of("RUN x", "x returned a non-zero code: 1", "x: no such file\n"))


@docker
async def test_files_steps_user_and_working_directory_take_effect(open_docker: OpenEngine) -> None:
    dockerfile = (
        BASE_DOCKERFILE
        + "COPY --chown=agent:agent files/ /home/agent/\nUSER agent\nWORKDIR /home/agent/work\n"
        + "ENV COLOUR=blue\nRUN echo made > made.txt\n"
    )
    context = BuildContext(dockerfile=dockerfile, files=(File(path="files/work/in.txt", data=b"in\n"),))
    async with open_docker() as engine:
        built = await engine.build(context)
        assert built.ok, built.log_tail
        assert (await engine.build(context)).cached
        async with await engine.create(SandboxSpec(image=built.image, limits=LIMITS)) as sandbox:
            result = await sandbox.exec(["sh", "-c", "pwd; cat in.txt made.txt; echo $COLOUR; stat -c %U in.txt"])
            assert result.stdout.decode().split() == ["/home/agent/work", "in", "made", "blue", "agent"]
        await engine.remove_image(built.image)
        await engine.remove_image(built.image)


@docker
async def test_failing_step_is_told_with_exit_code_and_log(open_docker: OpenEngine) -> None:
    dockerfile = BASE_DOCKERFILE + "RUN echo going; echo bad >&2; exit 3\nRUN true\n"
    async with open_docker() as engine:
        result = await engine.build(BuildContext(dockerfile=dockerfile))
    assert not result.ok
    assert result.failed_step == "RUN echo going; echo bad >&2; exit 3"
    assert result.exit_code == 3
    assert {"going", "bad"} <= set(result.log_tail.splitlines())


@docker
async def test_missing_copy_source_and_unknown_instruction_are_results(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        copied = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE + "COPY nothing /x\n"))
        assert (copied.ok, copied.failed_step) == (False, "COPY nothing /x")
        assert "nothing" in copied.log_tail
        unknown = await engine.build(BuildContext(dockerfile=BASE_DOCKERFILE + "WHATEVER x\n"))
        assert not unknown.ok
        assert "WHATEVER" in unknown.log_tail


@docker
async def test_build_that_hangs_is_ended_by_its_time_limit(open_docker: OpenEngine) -> None:
    context = BuildContext(dockerfile=BASE_DOCKERFILE + "RUN sleep 600\n", timeout_s=10.0)
    async with open_docker() as engine:
        result = await engine.build(context)
    assert not result.ok
    assert result.failed_step == "RUN sleep 600"
    assert "within 10 s" in result.log_tail


@docker
async def test_registry_that_does_not_answer_is_a_fault(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        with pytest.raises(PullFailed, match=r"localhost:1/no/such:image"):
            await engine.build(BuildContext(dockerfile="FROM localhost:1/no/such:image\nRUN true\n"))


@docker
async def test_steps_have_no_network_unless_asked_for(open_docker: OpenEngine) -> None:
    dockerfile = BASE_DOCKERFILE + "RUN ls /sys/class/net | grep -v lo | grep . && exit 9 || true\n"
    async with open_docker() as engine:
        result = await engine.build(BuildContext(dockerfile=dockerfile))
        assert result.ok, result.log_tail
        await engine.remove_image(result.image)


@docker
async def test_equal_builds_at_the_same_time_are_one(open_docker: OpenEngine) -> None:
    context = BuildContext(dockerfile=BASE_DOCKERFILE + "RUN date +%N > /stamp; sleep 0.3\n")
    results: list[BuildResult] = []

    async def build() -> None:
        results.append(await engine.build(context))

    async with open_docker() as engine:
        await engine.remove_image((await engine.build(context)).image)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(build)
        assert len({result.image for result in results}) == 1
        assert [result.cached for result in results] == [False] * 4
        await engine.remove_image(results[0].image)


@docker
async def test_a_context_cannot_reach_outside_itself(open_docker: OpenEngine) -> None:
    context = BuildContext(dockerfile=BASE_DOCKERFILE, files=(File(path="../x", data=b""),))
    async with open_docker() as engine:
        with pytest.raises(TransferRefused):
            await engine.build(context)


@docker
async def test_the_base_image_is_never_removed(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        await engine.remove_image(await engine._base_image())
        async with started(engine) as sandbox:
            assert (await sandbox.exec(["true"])).exit_code == 0


@docker
async def test_unknown_image_is_missing(open_docker: OpenEngine) -> None:
    async with open_docker() as engine:
        with pytest.raises(ImageMissing, match="no-such-image"):
            await engine.create(SandboxSpec(image="no-such-image:1"))


@docker
async def test_image_that_another_process_removed_is_missing_until_it_is_built_again(open_docker: OpenEngine) -> None:
    context = BuildContext(dockerfile=BASE_DOCKERFILE + "RUN echo shared > /shared\n")
    async with open_docker() as ours, open_docker() as theirs:
        built = await ours.build(context)
        async with await ours.create(SandboxSpec(image=built.image, limits=LIMITS)):
            pass
        await theirs.remove_image(built.image)
        with pytest.raises(ImageMissing, match=built.image):
            await ours.create(SandboxSpec(image=built.image, limits=LIMITS))
        assert not (await ours.build(context)).cached
        async with await ours.create(SandboxSpec(image=built.image, limits=LIMITS)) as sandbox:
            assert await sandbox.get("/shared") == b"shared\n"
        await ours.remove_image(built.image)


def test_volumes_of_an_image_are_why_it_is_refused() -> None:
    volumes = image_facts({"Config": {"Volumes": {"/var/lib/db": {}, "/data": {}}}}).volumes
    assert "VOLUME /data /var/lib/db" in str(volume_refusal(volumes))
    assert volume_refusal(image_facts({"Config": {"Volumes": None}}).volumes) is None


@docker
async def test_an_image_with_volumes_is_refused_and_not_kept(open_docker: OpenEngine) -> None:
    context = BuildContext(dockerfile=BASE_DOCKERFILE + "VOLUME /srv/data\n")
    async with open_docker() as engine, Client(None) as client:
        for _ in range(2):
            with pytest.raises(BuildUnsupported, match="VOLUME /srv/data: what is written below it"):
                await engine.build(context)
        name = image_name(f"FROM {await engine._base_image()}\nVOLUME /srv/data\n", context)
        assert not await image_exists(client, name)
