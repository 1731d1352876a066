"""The contract of every policy client. A module that tests one subclasses `PolicyContract` and gives it fixtures:

`open_client` (makes a client, to be entered, serving the weights of `model_dir` as version 0) and `model_dir` /
`other_dir` (two float32 Hugging Face directories of the same architecture).
"""

import anyio
import anyio.lowlevel
import torch

from trainer.batch import collate
from trainer.model import Scorer, load_model, policy_logprobs
from trainer.policy.protocol import Sampling
from trainer.sample import Sample


def score(directory, prompt, ids, temperature):
    """Log-probabilities of a continuation under the weights of a directory."""
    whole = [*prompt, *ids]
    sample = Sample(
        id="s",
        group="g",
        ids=whole,
        mask=[0] * len(prompt) + [1] * len(ids),
        logprobs=[0.0] * len(whole),
        versions=[0] * len(whole),
        reward=0.0,
    )
    with torch.no_grad():
        got, _ = policy_logprobs(
            Scorer(load_model(directory)), collate([sample]), temperature=temperature, row_tokens=4096
        )
    return got[0, len(prompt) :]


class PolicyContract:
    async def test_log_probabilities_are_those_of_the_model(self, open_client, model_dir):
        async with open_client() as client:
            for temperature in (0.7, 1.0, 1.5):
                got = await client.generate(
                    [1, 2, 3], Sampling(max_tokens=12, temperature=temperature), request_id=f"t{temperature}"
                )
                assert len(got.ids) == len(got.logprobs) == len(got.versions) == 12
                assert got.finish == "length"
                assert set(got.versions) == {0}
                torch.testing.assert_close(
                    torch.tensor(got.logprobs), score(model_dir, [1, 2, 3], got.ids, temperature), atol=1e-3, rtol=0
                )

    async def test_the_stop_token_is_part_of_what_was_sampled(self, open_client):
        async with open_client() as client:
            everything = tuple(range(31))
            got = await client.generate([1, 2], Sampling(max_tokens=5, stop_ids=everything), request_id="stop")
            assert len(got.ids) == 1
            assert got.finish == "stop"

    async def test_many_requests_share_the_engine(self, open_client, model_dir):
        async with open_client() as client:
            answers = {}

            async def one(i):
                prompt = [1 + i % 7] * (1 + i % 5)
                answers[i] = (
                    prompt,
                    await client.generate(prompt, Sampling(max_tokens=3 + i % 9), request_id=f"many/{i}"),
                )

            with anyio.fail_after(240):
                async with anyio.create_task_group() as group:
                    for i in range(24):
                        group.start_soon(one, i)
            for i, (prompt, got) in answers.items():
                assert len(got.ids) == 3 + i % 9
                torch.testing.assert_close(
                    torch.tensor(got.logprobs), score(model_dir, prompt, got.ids, 1.0), atol=1e-3, rtol=0
                )

    async def test_after_an_update_tokens_come_from_the_new_weights(self, open_client, other_dir):
        async with open_client() as client:
            await client.update(other_dir, 7)
            assert client.version == 7
            got = await client.generate([4, 5], Sampling(max_tokens=8), request_id="new")
            assert set(got.versions) == {7}
            torch.testing.assert_close(
                torch.tensor(got.logprobs), score(other_dir, [4, 5], got.ids, 1.0), atol=1e-3, rtol=0
            )

    async def test_generation_spans_an_update_with_a_version_for_each_token(self, open_client, other_dir):
        async with open_client() as client:
            answers = []

            async def long():
                answers.append(await client.generate([1, 2, 3], Sampling(max_tokens=900), request_id="span"))

            with anyio.fail_after(240):
                async with anyio.create_task_group() as group:
                    group.start_soon(long)
                    await anyio.lowlevel.checkpoint()  # the long request is on its way before the short one
                    await client.generate([9], Sampling(max_tokens=8), request_id="meanwhile")
                    await client.update(other_dir, 1)
            (got,) = answers
            assert got.versions == sorted(got.versions)
            assert set(got.versions) == {0, 1}
            assert len(got.ids) == 900

    async def test_a_cancelled_request_leaves_the_engine_free(self, open_client):
        async with open_client() as client:
            answers = []

            async def long():
                answers.append(await client.generate([1], Sampling(max_tokens=900), request_id="gone"))

            with anyio.fail_after(240):
                async with anyio.create_task_group() as group:
                    group.start_soon(long)
                    await anyio.lowlevel.checkpoint()  # the long request is on its way before the short one
                    await client.generate([9], Sampling(max_tokens=8), request_id="meanwhile")
                    group.cancel_scope.cancel()
                assert answers == []
                got = await client.generate([1], Sampling(max_tokens=2), request_id="next")
            assert len(got.ids) == 2

    async def test_scores_are_the_log_probabilities_of_given_ids(self, open_client, model_dir):
        async with open_client() as client:
            got = await client.score([1, 2, 3, 4])
            torch.testing.assert_close(torch.tensor(got), score(model_dir, [1], [2, 3, 4], 1.0), atol=1e-3, rtol=0)

    async def test_greedy_is_the_mode(self, open_client, model_dir):
        async with open_client() as client:
            got = await client.generate([3, 1], Sampling(max_tokens=6, temperature=0), request_id="greedy")
            model = load_model(model_dir)
            ids = [3, 1]
            for token in got.ids:
                with torch.no_grad():
                    assert int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
                ids.append(token)
