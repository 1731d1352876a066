"""The SGLang client under the contract, against a real server on the CPU; and what a failed hand-over leaves behind."""

import copy
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import torch
from safetensors.torch import save_file

from runtime.errors import UserError
from tests.trainer.policy.contract import PolicyContract, score
from tests.trainer.toy import CONFIG, DECOUPLED, TASKS, make_loop, play
from trainer.checkpoint import newest
from trainer.handover import PolicyPool, WeightStore
from trainer.metrics import read_metrics
from trainer.model import Critic, load_model, save_model, small_llama
from trainer.policy.protocol import HandoverFailed, PolicyUnavailable, PromptTooLong, Sampling
from trainer.policy.sglang import SGLangClient
from trainer.policy.sglang_weights import Refused, from_tensors
from trainer.policy.torch_engine import TorchEngine
from trainer.policy.weight_files import read_tensors
from trainer.ppo import Learner

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    save_model(small_llama(31, hidden=32, layers=2, seed=1), directory)
    return directory


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("other")
    save_model(small_llama(31, hidden=32, layers=2, seed=2), directory)
    return directory


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "server.log"


@pytest.fixture(scope="module")
def server(model_dir, log):
    """A real server, started once; tests put version 0 back before they use it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [ROOT / "scripts/sglang-cpu.sh", "keep", model_dir, str(port), "--skip-tokenizer-init"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{url}/model_info", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def open_client(server, model_dir):
    class Restored(SGLangClient):
        async def __aenter__(self):
            client = await super().__aenter__()
            await client.update(model_dir, 0)
            return client

    return lambda road="disk": Restored(server, road=road, deadline_s=240)


class TestContract(PolicyContract):
    pass


ROADS = pytest.mark.parametrize("road", ["disk", "tensors", "group"])


@ROADS
async def test_by_every_road_the_server_has_the_learners_weights(open_client, model_dir, other_dir, road):
    async with open_client(road) as client:
        await client.update(other_dir, 5)
        got = await client.score([1, 2, 3, 4, 5])
        torch.testing.assert_close(torch.tensor(got), score(other_dir, [1], [2, 3, 4, 5], 1.0), atol=1e-3, rtol=0)
        assert await client.unlike(other_dir) == []
        assert "lm_head.weight" in await client.unlike(model_dir)
        await client.update(model_dir, 6)  # and once more: nothing is left of the first time
        assert await client.unlike(model_dir) == []
        assert (await client.generate([1], Sampling(max_tokens=2), request_id="after")).versions == [6, 6]


@ROADS
async def test_a_pool_hands_over_by_every_road_while_requests_run(open_client, tmp_path, road):
    store = WeightStore(tmp_path)
    path = store.publish(small_llama(31, hidden=32, layers=2, seed=2), 1, probe=(1, 2, 3, 4, 5))
    answers = []
    async with PolicyPool({"server": open_client(road)}) as pool:

        async def ask():
            answers.append(await pool.generate([1, 2], Sampling(max_tokens=600), request_id=f"long-{road}"))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.lowlevel.checkpoint()  # the long request is on its way before the short one
                await pool.generate([9], Sampling(max_tokens=4), request_id=f"meanwhile-{road}")
                await pool.update(path, 1)
        assert set(answers[0].versions) == {0, 1}
        assert pool.checked["checksums_equal"] == 1
        assert pool.checked["probe_gap_max"] < 1e-3


async def test_a_half_done_hand_over_keeps_the_server_out_until_it_has_all_the_weights(open_client, tmp_path):
    store = WeightStore(tmp_path / "weights")
    path = store.publish(small_llama(31, hidden=32, layers=2, seed=2), 1, probe=(1, 2, 3, 4, 5))
    tensors = list(read_tensors(path).items())
    (tmp_path / "half").mkdir()
    save_file(dict(tensors[: len(tensors) // 2]), tmp_path / "half" / "model.safetensors")
    client, paused, goes_on = open_client("tensors"), anyio.Event(), anyio.Event()

    async def breaks_off(post, _weights, tag):
        await from_tensors(post, tmp_path / "half", tag)
        raise Refused(client.base_url, "out of memory", 400)

    async def pause(_seconds):
        paused.set()
        await goes_on.wait()

    with anyio.fail_after(400):
        async with PolicyPool({"server": client, "other": TorchEngine(load_model(path))}, sleep=pause) as pool:
            whole, client._send = client._send, breaks_off
            answers = []

            async def ask():
                answers.append(await pool.generate([1, 2], Sampling(max_tokens=600), request_id="in flight"))

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.lowlevel.checkpoint()
                await client.generate([9], Sampling(max_tokens=4), request_id="meanwhile")
                await pool.update(path, 1)
            assert pool.out == {"server": "out of memory"}
            assert len(answers[0].ids) == 600  # whole, and by the other engine: half new weights answer nobody
            assert set(answers[0].versions) == {1}
            assert len(await client.unlike(path)) > 0
            await paused.wait()
            client._send = whole
            goes_on.set()
            while pool.out:
                await pool.generate([1], Sampling(max_tokens=1), request_id="until it is back")
            assert await client.unlike(path) == []
            async with anyio.create_task_group() as group:
                for i in range(8):
                    long = Sampling(max_tokens=300)
                    group.start_soon(lambda i=i, s=long: pool.generate([1], s, request_id=f"load/{i}"))
                await anyio.lowlevel.checkpoint()  # each has its engine by now, and none its answer
                assert [seat.running for seat in pool.router.seats] == [4, 4]


async def test_weights_of_another_shape_never_reach_the_server(open_client, tmp_path):
    save_model(small_llama(29, hidden=32, layers=2), tmp_path)
    async with open_client() as client:
        with pytest.raises(HandoverFailed, match="another shape"):
            await client.update(tmp_path, 3)
        with pytest.raises(PolicyUnavailable, match="another shape"):
            await client.generate([1], Sampling(max_tokens=1), request_id="after")


async def test_what_does_not_fit_the_servers_context_is_told_as_that(open_client):
    async with open_client() as client:
        for prompt, most in (([1], 100_000), ([1] * 100_000, 1)):
            with pytest.raises(PromptTooLong):
                await client.generate(prompt, Sampling(max_tokens=most), request_id=f"long/{most}")


async def test_a_failed_hand_over_is_mended_by_the_next(open_client, other_dir, tmp_path):
    async with open_client() as client:
        with pytest.raises(HandoverFailed, match="holds no safetensors"):
            await client.update(tmp_path, 3)
        await client.update(other_dir, 4)
        got = await client.generate([1], Sampling(max_tokens=1), request_id="mended")
    assert got.versions == [4]


async def test_a_server_that_is_not_there_is_one_clear_error():
    with pytest.raises(PolicyUnavailable, match="model_info"):
        async with SGLangClient("http://127.0.0.1:9"):
            pass


async def test_a_server_says_how_much_it_holds(server):
    with pytest.raises(UserError, match=r"takes at most .* tokens, and the recipe's episodes may have 100000"):
        async with SGLangClient(server, context_tokens=100_000):
            pass


async def test_a_pool_finds_out_a_server_whose_weights_are_not_the_learners(open_client, tmp_path):
    store = WeightStore(tmp_path)
    good = store.publish(small_llama(31, hidden=32, layers=2, seed=2), 5, probe=(1, 2, 3, 4, 5))
    other = store.publish(small_llama(31, hidden=32, layers=2, seed=3), 6, probe=(1, 2, 3, 4, 5))
    forged = json.loads((other / "manifest.json").read_text())
    forged["probe"] = json.loads((good / "manifest.json").read_text())["probe"]
    (other / "manifest.json").write_text(json.dumps(forged))
    async with PolicyPool({"server": open_client()}) as pool:
        await pool.update(good, 5)
        assert pool.out == {}
        with pytest.raises(HandoverFailed, match="off the learner's"):
            await pool.update(other, 6)
        with anyio.move_on_after(0.2) as waits:
            await pool.generate([1], Sampling(max_tokens=1), request_id="x")
        assert waits.cancelled_caught


def kill(server):
    """End the server's processes as a power cut would; its keeper starts it again."""
    port, killed = server.rpartition(":")[2], 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words: list[bytes] = []
        with suppress(OSError):  # processes end while they are looked at
            words = entry.read_bytes().split(b"\0")
        if b"sglang.launch_server" in words and port.encode() in words:
            os.kill(int(entry.parent.name), signal.SIGKILL)
            killed += 1
    assert killed


async def test_the_loop_trains_through_a_real_server_that_is_killed_and_loses_nothing(
    open_client, server, log, tmp_path
):
    policy = small_llama(31, hidden=32, layers=2, seed=4)
    learner = Learner(policy, Critic(copy.deepcopy(policy)), DECOUPLED)

    def on_step(line):
        if line["step"] == 2:
            kill(server)

    async with PolicyPool({"server": open_client("group")}) as pool:

        async def patient(group, member):
            while True:
                try:
                    return await play(pool, group, member)
                except PolicyUnavailable:
                    await anyio.lowlevel.checkpoint()

        loop = make_loop(
            tmp_path, pool, learner=learner, config=replace(CONFIG, bound=1), rollout=patient, on_step=on_step
        )
        with anyio.fail_after(600):
            await loop.run()
        assert pool.version == 6
        assert pool.out == {}
    assert "has died and is started again" in log.read_text()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(line["staleness_max"] for line in lines) == 1
    assert min(line["behaviour_gap"] for line in lines) < 1e-4
    assert max(line["probe_gap_max"] for line in lines) < 1e-3
    assert all(line["checksums_equal"] == 1 for line in lines)
    wanted = {f"{task}/{epoch}/{member}" for task in TASKS for epoch in range(2) for member in range(2)}
    assert newest(tmp_path / "checkpoints").trained == wanted
    assert loop.buffer.counts["failed"] == 0
