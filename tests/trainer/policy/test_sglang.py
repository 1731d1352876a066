"""The SGLang client under the contract, against a real server on the CPU; and what a failed hand-over leaves behind."""

import copy
import json
import socket
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import torch

from tests.trainer.policy.contract import PolicyContract, score
from tests.trainer.toy import CONFIG, DECOUPLED, make_loop
from trainer.handover import PolicyPool, WeightStore
from trainer.metrics import read_metrics
from trainer.model import Critic, save_model, small_llama
from trainer.policy.protocol import HandoverFailed, PolicyUnavailable, Sampling
from trainer.policy.sglang import SGLangClient
from trainer.ppo import Learner

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
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
def server(model_dir, tmp_path_factory):
    """A real server, started once; tests put version 0 back before they use it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    command = [ROOT / "scripts/sglang-cpu.sh", "serve", model_dir, str(port), "--skip-tokenizer-init"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
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
        process.wait(60)


@pytest.fixture
def open_client(server, model_dir):
    class Restored(SGLangClient):
        async def __aenter__(self):
            client = await super().__aenter__()
            await client.update(model_dir, 0)
            return client

    return lambda: Restored(server, deadline_s=60)


class TestContract(PolicyContract):
    pass


async def test_a_fingerprint_agrees_with_the_learner(open_client, other_dir):
    async with open_client() as client:
        await client.update(other_dir, 5)
        got = await client.score([1, 2, 3, 4, 5])
    torch.testing.assert_close(torch.tensor(got), score(other_dir, [1], [2, 3, 4, 5], 1.0), atol=1e-3, rtol=0)


async def test_weights_of_another_shape_never_reach_the_server(open_client, tmp_path):
    save_model(small_llama(29, hidden=32, layers=2), tmp_path)
    async with open_client() as client:
        with pytest.raises(HandoverFailed, match="another shape"):
            await client.update(tmp_path, 3)
        with pytest.raises(PolicyUnavailable, match="another shape"):
            await client.generate([1], Sampling(max_tokens=1), request_id="after")


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
        with pytest.raises(PolicyUnavailable, match="no engine is in routing"):
            await pool.generate([1], Sampling(max_tokens=1), request_id="x")


async def test_the_loop_trains_through_a_real_server(open_client, tmp_path):
    policy = small_llama(31, hidden=32, layers=2, seed=4)
    learner = Learner(policy, Critic(copy.deepcopy(policy)), DECOUPLED)
    async with PolicyPool({"server": open_client()}) as pool:
        loop = make_loop(tmp_path, pool, learner=learner, config=replace(CONFIG, bound=1, steps=4))
        with anyio.fail_after(120):
            await loop.run()
        assert pool.version == 4
        assert pool.out == {}
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert max(line["staleness_max"] for line in lines) == 1
    assert min(line["behaviour_gap"] for line in lines) < 1e-4
