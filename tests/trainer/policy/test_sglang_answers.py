"""What the SGLang client makes of servers that answer strangely, or not at all; no server of SGLang is needed."""

import socket
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from runtime.errors import UserError
from trainer.policy.protocol import HandoverFailed, PolicyUnavailable
from trainer.policy.sglang import SGLangClient


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
