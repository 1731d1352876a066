"""The in-process engine under the contract, and what is its own."""

import time

import anyio
import anyio.lowlevel
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer.policy.contract import PolicyContract
from trainer.model import load_model, save_model, small_llama
from trainer.policy.protocol import HandoverFailed, PolicyUnavailable, Sampling
from trainer.policy.torch_engine import TorchEngine
from trainer.policy.weight_files import read_tensors


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


@pytest.fixture
def open_client(model_dir):
    return lambda: TorchEngine(load_model(model_dir), slots=8)


class TestContract(PolicyContract):
    pass


async def test_a_seed_fixes_the_draw(open_client):
    async with open_client() as client:
        sampling = Sampling(max_tokens=10, seed=3)
        first = await client.generate([1, 2], sampling, request_id="a")
        again = await client.generate([1, 2], sampling, request_id="b")
        assert first.ids == again.ids


async def test_who_joins_and_who_leaves_makes_nobody_else_be_computed_again(model_dir):
    model, computed = load_model(model_dir), []
    model.register_forward_pre_hook(
        lambda _module, _args, given: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    async with TorchEngine(model, slots=4) as client, anyio.create_task_group() as group:
        for i in range(12):  # of one length, so that no row is padded
            sampling = Sampling(max_tokens=3 + i)
            group.start_soon(lambda i=i, s=sampling: client.generate([1] * 9, s, request_id=f"r{i}"))
    sampled = sum(3 + i for i in range(12))
    assert sum(computed) == 12 * 9 + sampled - 12  # each token once; the last one of each is never fed


async def test_weights_of_another_shape_change_nothing(open_client, tmp_path, model_dir):
    async with open_client() as client:
        save_model(small_llama(29, hidden=32, layers=2), tmp_path)
        before = await client.generate([1, 2], Sampling(max_tokens=5, seed=1), request_id="a")
        with pytest.raises(HandoverFailed, match="another shape"):
            await client.update(tmp_path, 3)
        after = await client.generate([1, 2], Sampling(max_tokens=5, seed=1), request_id="b")
        assert (before.ids, before.logprobs) == (after.ids, after.logprobs)
        assert client.version == 0


async def test_while_weights_change_running_requests_wait_and_do_not_work(open_client, other_dir, monkeypatch):
    def slowly(directory):
        time.sleep(0.3)
        return read_tensors(directory)

    monkeypatch.setattr("trainer.policy.torch_engine.read_tensors", slowly)
    answers = []
    async with open_client() as client:

        async def long():
            answers.append(await client.generate([1, 2, 3], Sampling(max_tokens=400), request_id="long"))

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                group.start_soon(long)
                await anyio.lowlevel.checkpoint()
                before = await client.generate([9], Sampling(max_tokens=4), request_id="meanwhile")
                await client.update(other_dir, 1)
    (got,) = answers
    assert set(got.versions) == {0, 1}
    assert got.queue_s >= 0.3
    assert before.queue_s < got.queue_s


async def test_a_checkpoint_that_is_cut_off_changes_nothing(open_client, tmp_path, model_dir):
    async with open_client() as client:
        whole = (model_dir / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(HandoverFailed):
            await client.update(tmp_path, 3)
        assert client.version == 0


async def test_weights_in_several_files_are_all_taken(open_client, tmp_path, other_dir):
    load_model(other_dir).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    async with open_client() as client:
        await client.update(tmp_path, 3)
        assert (client.version, await client.unlike(other_dir)) == (3, [])


async def test_a_head_tied_to_the_embedding_follows_it(tmp_path):
    for seed in (1, 2):
        torch.manual_seed(seed)
        shape = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
        config = LlamaConfig(**shape, num_attention_heads=2, tie_word_embeddings=True)
        save_model(LlamaForCausalLM(config), tmp_path / str(seed))
    assert "lm_head.weight" not in read_tensors(tmp_path / "2")
    async with TorchEngine(load_model(tmp_path / "1")) as client:
        await client.update(tmp_path / "2", 1)
        assert await client.unlike(tmp_path / "2") == []
        taken = await client.score([1, 2, 3])
    async with TorchEngine(load_model(tmp_path / "2")) as client:
        assert await client.score([1, 2, 3]) == taken


async def test_a_closed_engine_says_so(model_dir):
    async with TorchEngine(load_model(model_dir)) as engine:
        pass
    with pytest.raises(PolicyUnavailable, match="closed"):
        await engine.generate([1], Sampling(max_tokens=1), request_id="x")


async def test_samples_follow_the_distribution(open_client, model_dir):
    async with open_client() as client:
        with torch.no_grad():
            wanted = torch.softmax(load_model(model_dir)(input_ids=torch.tensor([[5]])).logits[0, -1] / 0.5, -1)
        counts = torch.zeros(31)
        for i in range(400):
            got = await client.generate([5], Sampling(max_tokens=1, temperature=0.5), request_id=f"d{i}")
            counts[got.ids[0]] += 1
        assert (counts / 400 - wanted).abs().max() < 0.1
