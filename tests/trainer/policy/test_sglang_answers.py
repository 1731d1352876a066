"""What the SGLang client makes of servers that answer strangely, or not at all; no server of SGLang is needed."""

import json
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import save_file

from runtime.errors import UserError
from trainer.policy.protocol import HandoverFailed, PolicyUnavailable, PromptTooLong, RequestRefused, Sampling
from trainer.policy.sglang import SGLangClient
from trainer.policy.sglang_weights import checksums


@pytest.fixture
def strange(monkeypatch):
    """A client whose server answers everything with something else."""
    client = SGLangClient("http://nowhere")

    async def answer(path, body):
        return {"meta_info": {}, "ranks": []}

    monkeypatch.setattr(client, "_post", answer)
    client._info, client._ranks = {"device": "cpu", "dtype": "float32"}, 1
    return client


async def test_a_score_in_an_unknown_form_is_the_engines_failure(strange):
    with pytest.raises(PolicyUnavailable, match="unknown form"):
        await strange.score([1, 2])


def test_a_server_that_does_not_say_its_type_has_no_checksums_to_compare(tmp_path):
    save_file({"lm_head.weight": torch.ones(64, 2)}, tmp_path / "model.safetensors")
    assert checksums(tmp_path, "auto") is None
    assert checksums(tmp_path, "float32").keys() == {"lm_head.weight"}


async def test_weights_that_are_gone_are_a_hand_over_that_failed(strange, tmp_path, monkeypatch):
    async def gone(post, weights, name):
        raise FileNotFoundError(2, "No such file", str(weights))

    monkeypatch.setattr(strange, "_compare_shapes", lambda weights, version: None)
    strange._send = gone
    with pytest.raises(HandoverFailed, match="No such file"):
        await strange.update(tmp_path, 1)


async def test_checksums_in_an_unknown_form_tell_nothing(strange):
    assert await strange.unlike(Path("nowhere")) is None


async def test_weights_for_a_server_of_another_kind_of_file_are_refused(strange, tmp_path):
    strange._served = tmp_path
    with pytest.raises(HandoverFailed, match="holds no safetensors file"):
        await strange.update(tmp_path, 1)


@pytest.mark.parametrize("answer", [{}, {"weight_version": "0", "model_path": None}, {"weight_version": "0"}])
async def test_a_server_of_something_else_is_no_sglang(answer):
    async def say(request):
        return web.json_response(answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", say)
    async with TestServer(app) as server:
        with pytest.raises(UserError, match="does not answer as SGLang does"):
            async with SGLangClient(str(server.make_url("")), deadline_s=20):
                pass


async def test_a_server_that_never_answers_is_not_waited_for():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(PolicyUnavailable, match=r"no answer within 0\.1 s"),
    ):
        async with SGLangClient(f"http://127.0.0.1:{silent.getsockname()[1]}", deadline_s=0.1):
            pass


ANSWER = {
    "text": "",
    "output_ids": [7],
    "meta_info": {
        "prompt_tokens": 3,
        "finish_reason": {"type": "length", "length": 1},
        "weight_version": "v0",
        "output_token_logprobs": [[-1.5, 7, None]],
        "queue_time": 0.0,
    },
}


@asynccontextmanager
async def serving(*answers, info=(), **options):
    """A client of a server that answers generations with these, (status, body), after the one that probes it."""
    script, keys = [(200, ANSWER), *answers], []

    async def model_info(request):
        keys.append(request.headers.get("Authorization"))
        return web.json_response({"weight_version": "v0", "model_path": "/nowhere"})

    async def server_info(_request):
        return web.json_response({"tp_size": 1, "pp_size": 1, "device": "cpu", "dtype": "float32", **dict(info)})

    async def generate(_request):
        status, body = script.pop(0)
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    app = web.Application()
    app.router.add_get("/model_info", model_info)
    app.router.add_get("/server_info", server_info)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with SGLangClient(f"http://127.0.0.1:{runner.addresses[0][1]}", deadline_s=30, **options) as client:
            yield client, keys
    finally:
        await runner.cleanup()


TOO_LONG = [
    "The input (301 tokens) is longer than the model's context length (256 tokens).",
    "Requested token count exceeds the model's maximum context length of 256 tokens. You requested a total of 265"
    " tokens: 201 tokens from the input messages and 64 tokens for the completion. Please reduce the number of tokens"
    " in the input messages or the completion to fit within the limit.",
    "Input length (301 tokens) exceeds the maximum allowed length (250 tokens). Use a shorter input or enable"
    " --allow-auto-truncate.",
]


@pytest.mark.parametrize("message", TOO_LONG)
async def test_a_refusal_for_length_is_the_requests_fault(message):
    async with serving((400, {"error": {"message": message}})) as (client, _):
        with pytest.raises(PromptTooLong, match="HTTP 400"):
            await client.generate([1] * 201, Sampling(max_tokens=64), request_id="long")


async def test_other_refusals_of_a_request_are_told_from_a_server_that_fails():
    refused = (400, {"error": {"message": "temperature must be non-negative"}})
    async with serving(refused, (503, {"detail": "the queue is full"})) as (client, _):
        with pytest.raises(RequestRefused, match="temperature"):
            await client.generate([1], Sampling(max_tokens=1), request_id="refused")
        with pytest.raises(PolicyUnavailable, match="503") as failed:
            await client.generate([1], Sampling(max_tokens=1), request_id="failed")
        assert not isinstance(failed.value, RequestRefused)


@pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), ("", None)])
async def test_requests_carry_the_key_of_the_environment(monkeypatch, key, sent):
    monkeypatch.setenv("TERMLOOM_ENGINE_API_KEY", key)
    async with serving() as (_, keys):
        assert keys == [sent]


async def test_an_answer_that_waits_for_the_end_of_a_hand_over_counts_that_as_waiting():
    got, begun = [], anyio.Event()
    async with serving() as (client, _):

        async def answer(_path, _body):
            client._routable = anyio.Event()  # a hand-over begins while the answer is on its way
            begun.set()
            return ANSWER

        async def ask():
            got.append(await client.generate([1], Sampling(max_tokens=1), request_id="r"))

        client._post = answer
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await begun.wait()
            await anyio.sleep(0.2)
            client._routable.set()
    assert got[0].queue_s >= 0.1


async def test_a_server_whose_context_is_shorter_than_an_episode_is_refused_at_once():
    with pytest.raises(UserError, match="at most 1018 tokens, and the recipe's episodes may have 16384"):
        async with serving(info={"max_req_input_len": 1018}, context_tokens=16384):
            pass


@pytest.mark.parametrize("info", [{"max_req_input_len": 1018}, {}], ids=["just enough", "it does not say"])
async def test_a_server_whose_context_holds_an_episode_is_taken(info):
    async with serving(info=info, context_tokens=1024) as (client, _):
        assert client.version == 0
