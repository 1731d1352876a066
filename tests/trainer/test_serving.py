"""What is served comes from a whole model directory, or is refused in one line; a server has it for sure."""

import json
import shutil

import msgspec
import pytest

from runtime.errors import UserError
from tests.trainer.world import make_model
from trainer.model import load_model
from trainer.policy.protocol import HandoverFailed, Sampling
from trainer.policy.torch_engine import TorchEngine
from trainer.recipe import ModelTable, Recipe, ServeTable
from trainer.serving import load_policy, open_encoder, serve

RECIPE = Recipe(
    name="tiny", model=ModelTable(name="tiny", chat_format="small"), serve=ServeTable(engine="torch", max_running=4)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def directory(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "policy")


def cut(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def lose(directory):
    (directory / "model.safetensors").unlink()


def describe(**other):
    def write(directory):
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | other))

    return write


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "header"),
        (lose, "no file named model.safetensors"),
        (describe(model_type="nobody"), "model type `nobody`"),
        (describe(hidden_size="wide"), "hidden_size"),
        (describe(hidden_size=64), "ignore_mismatched_sizes"),
        (describe(num_hidden_layers=2), "tensors are missing: model.layers.1"),
        (describe(num_attention_heads=0), "zero"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(directory, damage, why):
    load_policy(directory)
    damage(directory)
    with pytest.raises(UserError, match=rf"(?s)policy: no model can be loaded: .*{why}.*Hugging Face directory"):
        load_policy(directory)


@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff\xfe"])
def test_a_damaged_tokeniser_is_refused_in_one_line(directory, text):
    open_encoder(RECIPE, directory)
    (directory / "tokenizer.json").write_bytes(text)
    with pytest.raises(UserError, match=r"tokenizer\.json: is no tokeniser that can be read"):
        open_encoder(RECIPE, directory)


class Deaf(TorchEngine):
    """A server that says that it took weights, and serves its own."""

    async def update(self, weights, version):
        self._version = version


@pytest.fixture
def served(directory, tmp_path, monkeypatch):
    """Makes a pool over a server, as `evaluate` opens it; the server was started with other weights."""
    recipe = msgspec.structs.replace(RECIPE, serve=ServeTable(engine="sglang"))
    other = make_model(tmp_path / "other", seed=1)

    def open_served(kind=TorchEngine):
        monkeypatch.setattr("trainer.policy.sglang.SGLangClient", lambda url, **_: kind(load_model(other)))
        encoder = open_encoder(recipe, directory)
        return serve(recipe, directory, ["http://server"], encoder=encoder, place=tmp_path / "place")

    return open_served


async def test_a_server_is_handed_the_policy_that_is_measured(served, directory, tmp_path):
    async with TorchEngine(load_model(directory)) as own:
        wanted = await own.score([1, 2, 3, 4])
    async with served() as pool:
        assert await pool.score([1, 2, 3, 4]) == pytest.approx(wanted, abs=1e-5)
        assert pool.checked["checksums_equal"] == 1
        got = await pool.generate([1, 2], Sampling(max_tokens=2), request_id="x")
        assert set(got.versions) == {pool.version}
    assert not (tmp_path / "place").exists()


async def test_a_server_that_keeps_its_own_weights_measures_nothing(served, tmp_path):
    with pytest.raises(HandoverFailed, match="its checksums differ"):
        async with served(Deaf):
            pytest.fail("it is asked")
    assert not (tmp_path / "place").exists()


async def test_a_policy_served_here_is_handed_to_nobody(directory, tmp_path):
    async with serve(RECIPE, directory, [], encoder=open_encoder(RECIPE, directory), place=tmp_path / "place") as pool:
        assert not (tmp_path / "place").exists()
        assert pool.version == 0
